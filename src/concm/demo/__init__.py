"""The stories of `concm demo`, told on real photos."""
