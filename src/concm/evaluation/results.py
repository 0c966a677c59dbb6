"""Results: one JSON file a run, from which every table and picture is derived."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from concm import __version__
from concm.errors import ConcmError
from concm.features.bank import Bank
from concm.files import write_whole
from concm.methods import Choice, Method
from concm.metrics import novel_at

SCHEMA = 1
Result = dict[str, Any]


@cache
def code() -> str:
    """A fingerprint of this package's source and tables: a result of others is not taken for one of these."""
    state = blake2b(digest_size=8)
    root = Path(str(files("concm")))
    for path in sorted(path for kind in ("*.py", "*.toml", "*.txt", "*.npz") for path in root.rglob(kind)):
        state.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return state.hexdigest()


def head(choice: Choice, bank: Bank, *, draw: int, seed: int, splits: Path | None, device: str) -> Result:
    """All that decides a run, so that a finished one can be found again."""
    scenario = bank.scenario
    return {
        "schema": SCHEMA,
        "scenario": {name: getattr(scenario, name) for name in ("name", "base", "way", "shot", "sessions")},
        "bank": {**bank.encoder, "precision": bank.card["precision"], "digest": bank.card["digest"]},
        "method": choice.entry.name,
        "label": choice.label,
        "settings": choice.recorded,
        "needs": list(choice.needs),
        "draw": draw,
        "seed": seed,
        "splits": None if splits is None else str(splits),
        "environment": {
            "concm": __version__,
            "code": code(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        },
    }


def place(out: Path, start: Result) -> Path:
    """Where the run belongs: the name tells people what it is, and its last part everything that decides it."""
    key = blake2b(json.dumps(start, sort_keys=True).encode(), digest_size=6).hexdigest()
    return out / f"{start['scenario']['name']}-{start['method']}-draw{start['draw']}-seed{start['seed']}-{key}.json"


def finished(start: Result, sessions: list[dict[str, Any]], method: Method) -> Result:
    """The whole result, once all sessions are done."""
    size = {"memory_bytes": method.memory_bytes, "parameters": method.parameter_count}
    remarks = list(getattr(method, "remarks", []))
    return {**start, "sessions": sessions, "summary": {**summary(sessions), **size}, "remarks": remarks}


def summary(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a whole run; docs/concepts/scenarios.md defines them."""
    later = sessions[1:]

    def mean(name: str) -> float:
        return float(np.mean([session[name] for session in later])) if later else 0.0

    return {
        "base_acc": sessions[0]["acc"],
        "ahm": mean("hm"),
        "fa": sessions[-1]["acc"],
        "pd": sessions[0]["acc"] - sessions[-1]["acc"],
        "nacc": mean("acc_novel"),
        "ber": mean("ber"),
        "avg_acc": float(np.mean([session["acc"] for session in sessions])),
        "seconds": sum(session["seconds"] for session in sessions),
        "class_means": {
            "ahm": float(np.mean([session["class_means"]["hm"] for session in later])) if later else 0.0,
            "fa": sessions[-1]["class_means"]["acc"],
        },
    }


def save(path: Path, result: Result) -> None:
    """Write it whole."""
    write_whole(path, (json.dumps(result) + "\n").encode())


def load(path: Path) -> Result:
    """Read it back."""
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"))
        if result["schema"] != SCHEMA:
            raise ConcmError(f"{path} has result schema {result['schema']}, this version reads {SCHEMA}")
        assert result["summary"]
        assert len(result["sessions"]) == result["scenario"]["sessions"] + 1
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise ConcmError(f"{path} is not a whole result file; delete it, and the run is done again") from error
    return result


def aggregate(results: Sequence[Result]) -> dict[str, Any]:
    """One method's row: means over its runs, and the standard deviation of what is compared."""
    summaries = [result["summary"] for result in results]

    def values(name: str) -> list[float]:
        return [float(entry[name]) for entry in summaries]

    row: dict[str, Any] = {"method": results[0]["label"]}
    for name in ("ahm", "fa"):
        row |= {name: float(np.mean(values(name))), f"{name}_std": float(np.std(values(name)))}
    for name in ("base_acc", "pd", "nacc", "ber", "seconds", "memory_bytes", "parameters"):
        row[name] = float(np.mean(values(name)))
    sessions = [result["sessions"] for result in results]
    row["hm"] = _by_session(sessions, "hm")[1:]
    row["last_base"], row["last_novel"] = (_by_session(sessions, name)[-1] for name in ("acc_base", "acc_novel"))
    rates = [[s["smr"] for s in run] for run in sessions]
    row["smr"] = None if rates[0][-1] is None else np.mean(rates, 0).tolist()[1:]
    row["class_means"] = {k: float(np.mean([s["class_means"][k] for s in summaries])) for k in ("ahm", "fa")}
    row["trade_off"] = trade_off(results)
    row["runs"] = len(results)
    row["device"] = results[0]["environment"]["device"]
    return row


def _by_session(runs: list[list[dict[str, Any]]], name: str) -> list[float]:
    return [float(np.mean([run[at][name] for run in runs])) for at in range(len(runs[0]))]


def trade_off(results: Sequence[Result]) -> dict[str, list[float]] | None:
    """The mean trade-off at the last session, by bias."""
    curves = [result["sessions"][-1].get("trade_off") for result in results]
    if curves[0] is None:
        return None
    return {name: np.mean([curve[name] for curve in curves], 0).tolist() for name in ("bias", "base", "novel")}


def above(row: dict[str, Any], control: dict[str, Any]) -> float | None:
    """Points of novel accuracy by which a row exceeds the control's curve at the row's own base accuracy."""
    curve = control["trade_off"]
    if curve is None or not min(curve["base"]) <= row["last_base"] <= max(curve["base"]):
        return None
    return float(row["last_novel"] - novel_at(row["last_base"], curve["base"], curve["novel"]))
