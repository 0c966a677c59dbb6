"""Scenarios and pictures: from a data folder to labelled images, ready for a network."""
