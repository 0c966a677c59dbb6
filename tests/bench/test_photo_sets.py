"""The bench on sets of photos: how photos are dealt, what the controls do, and what the tables say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

SCRIPT = Path(__file__).parents[2] / "bench" / "photo_sets.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("photo_sets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["photo_sets"] = module  # where dataclasses look for their types
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def birds(script, tmp_path):
    """A folder like CUB's, of empty files: 100 classes of 30 photos, and one too many."""
    for part, count in (("train", 30), ("test", 12)):
        for label in range(101):
            folder = tmp_path / part / f"{label + 1:03}.Bird_{label}"
            folder.mkdir(parents=True)
            for photo in range(count):
                (folder / f"{photo:02}.jpg").touch()
    return script.cub(tmp_path)


def clusters(classes: int, each: int, seed: int = 0, noise: float = 0.5):
    """Features and labels of classes that lie well apart."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 16, generator=torch.Generator().manual_seed(7))
    labels = torch.arange(classes).repeat_interleave(each)
    return centres[labels] + noise * torch.randn(len(labels), 16, generator=random), labels


def test_birds_are_taught_in_a_fixed_order_of_sixty_and_four_times_ten(script, birds, tmp_path):
    assert [len(names) for names in birds.sessions] == [60, 10, 10, 10, 10]
    assert {len(own) for own in birds.test.values()} == {10}
    assert list(birds.train) == list(script.cub(tmp_path).train) != sorted(birds.train)
    assert "Bird 100" not in birds.train


def test_groceries_are_read_from_their_lists(script, tmp_path):
    (tmp_path / "classes.csv").write_text("Class Name (str),Class ID (int)\nRed-Apple,0\nMilk,1\n")
    for part, counts in (("train", (3, 2)), ("test", (14, 1)), ("val", (0, 1))):
        lines = [f"{part}/{label}/{at}.jpg, {label}, 0\n" for label, count in enumerate(counts) for at in range(count)]
        (tmp_path / f"{part}.txt").write_text("".join(lines))
    photos = script.grocery(tmp_path)
    assert set(photos.train) == {"Red Apple", "Milk"}
    assert [len(part["Red Apple"]) for part in (photos.train, photos.test, photos.val)] == [3, 12, 0]
    assert photos.val["Milk"] == [tmp_path / "val/1/0.jpg"]


def test_fewer_shots_are_a_part_of_more_and_what_is_unused_is_never_taught(script, birds):
    few, unused = script.deal(birds, 0, 1)
    many, same = script.deal(birds, 0, 10)
    assert unused == same
    assert few[0] == many[0]
    for lesson, longer in zip(few[1:], many[1:], strict=True):
        for name, own in lesson.items():
            assert own == longer[name][:1]
            assert len(longer[name]) == 10
    for lesson in many:
        for name, own in lesson.items():
            assert len(unused[name]) == 10
            assert not set(own) & set(unused[name])


def test_draws_differ_in_photos_alone(script, birds):
    one, other = (script.deal(birds, draw, 5)[0] for draw in (0, 1))
    assert [list(lesson) for lesson in one] == [list(lesson) for lesson in other]
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_the_whitened_cosine_is_that_of_the_inverse_root_of_the_shrunk_covariance(script):
    features, labels = clusters(6, 20)
    unit = F.normalize(features.double(), dim=1)
    means = torch.stack([unit[labels == label].mean(0) for label in range(6)])
    within = (unit - means[labels]).T @ (unit - means[labels]) / (len(unit) - 6)
    values, vectors = torch.linalg.eigh(within + script.SHRINKAGE * within.diagonal().mean() * torch.eye(len(within)))
    theirs = F.normalize(unit @ vectors * values.rsqrt() @ vectors.T, dim=1).float()
    ours = script.whitening(features, labels)(features)
    torch.testing.assert_close(ours @ ours.T, theirs @ theirs.T, atol=1e-4, rtol=0)


def test_the_rehearsed_constant_is_larger_where_there_are_fewer_shots(script):
    features, labels = clusters(20, 20, noise=1.0)
    one, ten = (script.rehearsed_constants(features, labels, shots) for shots in (1, 10))
    assert one["hm"] > ten["hm"]
    assert all(low in script.CONSTANTS for low in one.values())


@pytest.mark.parametrize("kind", ["ncm", "lr", "lr_unit", "svm", "ridge"])
def test_controls_tell_classes_apart(script, kind):
    if kind != "ncm":
        pytest.importorskip("sklearn")
    (features, labels), (asked, truth) = clusters(5, 10), clusters(5, 10, seed=1)
    given = (features, labels, asked)
    scores = script.nearest_mean(*given) if kind == "ncm" else script.retrained(kind, *given)
    assert scores.shape == (50, 5)
    assert float((scores.argmax(1) == truth).double().mean()) > 0.95
    if kind.startswith("lr"):
        torch.testing.assert_close(scores.sum(1), torch.ones_like(scores.sum(1)))


def test_calibration_error_counts_known_photos_and_auroc_the_others_too(script):
    labels, best = torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 1, 0])
    sure = torch.tensor([0.9, 0.9, 0.9, 0.1])
    found = script.judged(labels, best, sure, sure, 2)
    assert found == {"ece": pytest.approx(100 * (0.9 - 2 / 3), abs=1e-4), "auroc": 100.0}
    assert script.judged(labels, best, sure, sure, 3)["auroc"] is None


def test_one_half_of_the_validation_photos_calibrates_and_the_other_is_asked(script):
    val = {"milk": ["a", "b", "c"], "juice": []}
    told, asked = [], []
    run = SimpleNamespace(
        photos=SimpleNamespace(val=val),
        names=["milk", "juice"],
        classifier=SimpleNamespace(calibrate=told.append),
        refused=lambda part, classes: asked.append((part, classes)) or 4.0,
    )
    assert script.Run.calibrated(run) == 4.0
    assert (told, asked) == ([{"milk": ["a", "c"]}], [({"milk": ["b"], "juice": []}, 2)])
    run.classifier = SimpleNamespace()
    assert script.Run.calibrated(run) is None


def made_up(script, shots: int, draw: int, acc: float):
    accuracy = {kind: dict.fromkeys(("acc", "base", "novel", "hm"), 50.0) for kind in script.TITLES}
    accuracy["concm"] = dict.fromkeys(("acc", "base", "novel", "hm"), acc)
    accuracy["ridge"] = dict.fromkeys(("acc", "base", "novel", "hm"), 60.0)
    sure = {"ece": 4.0, "auroc": None}
    refused = {"unused": 5.0, "test": 6.0, "val": None}
    early = {"concm": {"ece": 1.0, "auroc": 80.0}, "lr": {"ece": 1.0, "auroc": 70.0}}
    sessions = [early, {"accuracy": accuracy, "concm": sure, "lr": sure, "refused": refused}]
    seconds = {"fit": 3.0, "learn": [1.0, 2.0], "predict_one": 0.02}
    heading = {"set": "cub", "draw": draw, "shots": shots}
    return {**heading, "sessions": sessions, "calibrated": None, "seconds": seconds}


def test_tables_have_means_over_draws_and_the_lead_over_the_best_control(script):
    runs = [made_up(script, 5, 0, 61.0), made_up(script, 5, 1, 62.0), made_up(script, 1, 0, 59.0)]
    accuracy, lead, confidence = (part.splitlines() for part in script.markdown(runs).split("\n\n"))
    assert accuracy[3].startswith("| 5 (draws: 2) | 61.5/61.5/61.5/**61.5** | 50.0/50.0/50.0/**50.0** |")
    assert [line.split(" | ")[1] for line in lead[2:]] == ["-1.0 / -1.0", "+1.5 / +1.5", "+0.2 / +0.2"]
    assert confidence[3] == "| 5 | 4.0 | 4.0 | 5.0 | 6.0 | – | – | 80.0 | 70.0 | 3.0 | 1.5 | 20.0 |"
    assert {line.count("|") for line in accuracy} == {len(script.TITLES) + 2}


def test_unit_features_are_what_nearest_mean_compares(script):
    features, labels = clusters(3, 4)
    scaled = features * torch.arange(1.0, 13.0)[:, None]
    torch.testing.assert_close(
        script.nearest_mean(scaled, labels, features), script.nearest_mean(F.normalize(features), labels, features)
    )
