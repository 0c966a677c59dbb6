"""The protocol: learn session after session, and after each one classify the test images of all classes seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from concm.features.bank import Bank
from concm.features.sessions import Shots, sessions
from concm.methods import PICTURES, Method, teach
from concm.methods.registry import granted
from concm.metrics import accuracies, class_means, confusion, trade_off

BIASES = np.round(
    np.concatenate([np.linspace(-0.5, 0.5, 201), np.geomspace(0.55, 4, 12), -np.geomspace(0.55, 4, 12)]), 4
)
BIASES.sort()


def run(method: Method, bank: Bank, shots: Shots, *, needs: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Figures of the base session, then of each incremental one, as they come.

    A method is shown what it `needs`, and nothing else that is not for every method; one that needs pictures scores
    those instead of features.

    `seconds` is learning and scoring. The last session also has the method's whole trade-off: base and novel
    accuracy if a constant were added to its novel scores.
    """
    base, last = bank.scenario.base, bank.scenario.sessions
    for session in sessions(bank, shots):
        begun = time.perf_counter()
        teach(method, granted(session, needs))
        seen = session.classes.stop
        test = bank.test.where(bank.test.labels < seen)
        images = test.pictures if PICTURES in needs and test.pictures is not None else test.features
        scores = method.scores(images)
        predicted = scores.argmax(1).cpu()
        seconds = time.perf_counter() - begun
        matrix = confusion(test.labels, predicted, seen)
        figures: dict[str, Any] = {"index": session.index, "classes": seen, **accuracies(matrix, base)}
        figures["class_means"] = class_means(matrix, base)
        figures["smr"] = getattr(method, "smr", None)
        figures["seconds"] = seconds
        figures["confusion"] = matrix.tolist()
        if session.index == last > 0:
            old, new = trade_off(torch.as_tensor(scores), test.labels, base, BIASES)
            figures["trade_off"] = {"bias": BIASES.tolist(), "base": old.tolist(), "novel": new.tolist()}
        yield figures
