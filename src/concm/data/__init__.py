"""Everything left of the classifier: scenarios, images, sessions and feature banks."""
