"""The methods of the bench, one file each, and their registry: features or pictures in, scores out.

A new method is a class with the verbs `fit_base`, `learn` and `scores` under the decorator `method`; `Learner` keeps
its state and counts its memory. No method sees test data.
"""

from concm.methods.base import Learner, Method, teach
from concm.methods.choice import Choice, choice_of, choose
from concm.methods.entry import Entry
from concm.methods.registry import EQUAL, EXEMPLARS, NAMES, PICTURES, POOL, TOTAL, VIEWS, entries, method

__all__ = [
    "EQUAL",
    "EXEMPLARS",
    "NAMES",
    "PICTURES",
    "POOL",
    "TOTAL",
    "VIEWS",
    "Choice",
    "Entry",
    "Learner",
    "Method",
    "choice_of",
    "choose",
    "entries",
    "method",
    "teach",
]
