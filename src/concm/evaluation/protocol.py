"""The protocol: learn session after session, and after each one classify the test images of all classes seen."""

from __future__ import annotations

from collections.abc import Iterator

from concm.data.bank import Bank
from concm.data.sessions import Shots, sessions
from concm.evaluation.metrics import accuracies, confusion
from concm.methods import Method


def run(method: Method, bank: Bank, shots: Shots) -> Iterator[dict[str, float]]:
    """Metrics of the base session, then of each incremental one, as they come."""
    for session in sessions(bank, shots):
        if session.index == 0:
            method.fit_base(session)
        else:
            method.learn(session)
        seen = session.classes.stop
        test = bank.test.where(bank.test.labels < seen)
        predicted = method.scores(test.features).argmax(1)
        yield accuracies(confusion(test.labels, predicted, seen), bank.scenario.base)
