"""The protocol, and metrics from one confusion matrix a session."""
