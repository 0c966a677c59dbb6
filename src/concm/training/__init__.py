"""The base session: from pictures of the base classes to a frozen backbone."""
