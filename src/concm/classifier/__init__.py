"""The photo classifier: a folder that knows classes, learns new ones from a few photos, and says what it sees."""
