"""The protocol: learn session after session, and after each one classify the test images of all classes seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch

from concm.evaluation.results import Curve, Figures
from concm.features.bank import Bank
from concm.features.sessions import Shots, sessions
from concm.methods import PICTURES, Method, teach
from concm.methods.registry import granted
from concm.metrics import accuracies, class_mean_accuracies, confusion, trade_off

BIASES = np.round(
    np.concatenate([np.linspace(-0.5, 0.5, 201), np.geomspace(0.55, 4, 12), -np.geomspace(0.55, 4, 12)]), 4
)
BIASES.sort()


def run(method: Method, bank: Bank, shots: Shots, *, needs: tuple[str, ...] = ()) -> Iterator[Figures]:
    """Figures of the base session, then of each incremental one, as they come.

    A method is shown what it `needs`, and nothing else that is not for every method; one that needs pictures scores
    those instead of features. The last session also has the method's whole trade-off: base and novel accuracy if a
    constant were added to its novel scores.
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
        matrix, curve = confusion(test.labels, predicted, seen), None
        if session.index == last > 0:
            old, new = trade_off(torch.as_tensor(scores), test.labels, base, BIASES)
            curve = Curve(BIASES.tolist(), old.tolist(), new.tolist())
        yield Figures(
            **asdict(accuracies(matrix, base)),
            index=session.index,
            classes=seen,
            class_means=class_mean_accuracies(matrix, base),
            seconds=seconds,
            confusion=matrix.tolist(),
            smr=getattr(method, "smr", None),
            trade_off=curve,
        )
