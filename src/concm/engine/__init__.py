"""The engine: calibrated prototypes, a structure that is re-matched at every session, and a small projector."""
