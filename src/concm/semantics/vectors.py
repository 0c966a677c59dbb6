import re


def spellings(name):
    """X"""
    tokens = name.lower().replace("_", " ").split()
    return tokens + [piece for token in tokens for piece in re.split(r"[^\w]+", re.sub(r"['’]s$", "", token)) if piece]
