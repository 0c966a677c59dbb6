"""The demonstrations of `concm demo`, on real photos."""
