"""Teach an image classifier new classes from five photos and a name, without retraining and without forgetting."""

__version__ = "0.1.0"
