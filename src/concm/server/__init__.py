"""The server: one page and an HTTP API for a classifier, on this machine, behind a token."""
