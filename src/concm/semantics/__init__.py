"""What a class name means: a noun of WordNet, the parts such things have, and word vectors."""
