"""How reliable "unknown" and the probabilities are, session by session, on a feature bank.

    python bench/unknown.py [--bank FILE] [--draws 5] [--rate 0.05] [--json FILE]

Strangers are test images of classes whose session is still to come.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from concm.classifier.confidence import Confidence
from concm.classifier.evaluation import Evaluation, evaluate
from concm.classifier.rehearsal import Plan, rehearse
from concm.engine.concm import Engine
from concm.features.bank import Bank
from concm.features.sessions import BaseSession, draw, sessions
from concm.methods import teach


def play(bank: Bank, plan: Plan, seed: int, rate: float) -> list[Evaluation]:
    """What the classifier would report after each session on all test images."""
    engine = Engine(plan.settings, seed=seed)
    names, found = list(bank.scenario.names), []
    for session in sessions(bank, draw(bank, seed)):
        teach(engine, session)
        truth = [names[label] for label in bank.test.labels.tolist()]
        scores, confidence = engine.scores(bank.test.features), Confidence.of(engine)
        found.append(evaluate(scores, truth, engine.names, bank.scenario.base, confidence, rate, session.index))
    return found


def from_samples(bank: Bank, plan: Plan, rate: float) -> list[dict[str, float]]:
    """The results of thresholds from each class's sampled features instead, before the last session."""
    engine, found = Engine(plan.settings), list[dict[str, float]]()
    for session in list(sessions(bank, draw(bank, 0)))[:-1]:
        teach(engine, session)
    known = bank.test.labels < len(engine.names)
    best = engine.scores(bank.test.features).max(1)
    plain = replace(engine.head, metric=())  # samples are drawn as the metric sees features
    for noise in (1.0, 3.0):
        sampler = engine.memory.sampler(64, 64, noise=noise, around="exemplars")
        scores = plain(sampler(torch.Generator().manual_seed(0)))
        own = scores.gather(1, sampler.labels[:, None])[:, 0].view(-1, 64)
        limit = own.quantile(rate, 1)[sampler.labels.view(-1, 64)[:, 0].argsort()]
        refused = best.values < limit[best.indices]
        share = {
            "refused": float(refused[known].double().mean()),
            "false_accept": float((~refused[~known]).double().mean()),
        }
        found.append({"noise": noise} | {name: 100 * value for name, value in share.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bank = Bank.load(options.bank) if options.bank else Bank.bundled()
    first = next(sessions(bank, draw(bank, 0)))
    assert isinstance(first, BaseSession)
    unseen = not bank.card.recipe
    plan = rehearse(first, "even", unseen=unseen)
    print(f"{bank.scenario.name}, {bank.encoder.name}, trust in names {plan.settings.trust:g}, unseen {unseen}")
    runs = [play(bank, plan, seed, options.rate) for seed in range(options.draws)]
    rows: list[dict[str, Any]] = []
    for at in range(bank.scenario.sessions + 1):
        results = [asdict(run[at]) for run in runs]
        keys = ("acc", "hm", "ece", "refused", "false_accept", "auroc")
        row: dict[str, Any] = {"session": at, "classes": results[0]["classes"], "strangers": results[0]["strangers"]}
        for key in keys:
            values = [result[key] for result in results if result[key] is not None]
            row |= {key: float(np.mean(values)), f"{key}_std": float(np.std(values))} if values else {key: None}
        rows.append(row)
        print("  ".join(f"{key} {row[key]:6.2f}" for key in row if row[key] is not None and not key.endswith("_std")))
    with_strangers = [row for row in rows if row["strangers"]]
    means = {key: float(np.mean([row[key] for row in with_strangers])) for key in ("refused", "false_accept", "auroc")}
    means["ece"] = float(np.mean([row["ece"] for row in rows]))
    print("mean over sessions:", "  ".join(f"{key} {value:.2f}" for key, value in means.items()))
    sampled = from_samples(bank, plan, options.rate)
    print("thresholds from sampled features:", json.dumps(sampled))
    if options.json:
        about = {"scenario": bank.scenario.name, "backbone": bank.encoder.name, "rate": options.rate}
        options.json.write_text(
            json.dumps({**about, "draws": options.draws, "mean": means, "sampled": sampled, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
