"""Feature banks and the learning sessions that are cut from them: where pictures have become tensors."""
