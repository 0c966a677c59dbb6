"""`concm bench` as users type it: the table, the picture, the files, and every way to ask for the impossible."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest
from PIL import Image

from concm import methods
from concm.evaluation.results import Result
from concm.methods import entries
from tests.support.data import make_bank
from tests.support.tiny import CONCM, call, environment, sentence, typed, wait_until

QUICK = "concm:base_steps=2,steps=2,calibration.steps=2,hidden=16"
METHODS = ["ncm", QUICK, "ncm_metric", "ncm_bias"]
KEYS = {"method", "ahm", "ahm_std", "fa", "fa_std", "base_acc", "pd", "nacc", "seconds", "hm"}


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 base classes, 3 sessions of 2 classes."""
    path = tmp_path_factory.mktemp("bank") / "tiny.safetensors"
    make_bank().save(path)
    return path


def words(bank: Path, out: Path, *more: object, draws: int = 2, jobs: int = 1) -> list[object]:
    return ["bench", "--bank", bank, "--draws", draws, "--out", out, "--jobs", jobs, *more]


def refusal(capsys, *asked: object, code: int) -> str:
    capsys.readouterr()
    assert call(*asked) == code
    said = capsys.readouterr()
    assert said.out == ""
    return sentence(said.err)


def table_of(text: str) -> dict[str, list[str]]:
    """The figures of each row of the printed table, by method."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("method "))
    rows = takewhile(lambda line: not line.startswith(("published", "columns")), lines[begin + 1 :])
    return {name: figures for name, *figures in map(str.split, rows)}


# what it gives


@pytest.fixture(scope="module")
def bench(bank: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The whole of it once, typed; what it printed, and where it wrote."""
    out = tmp_path_factory.mktemp("bench")
    files = ("--json", out / "table.json", "--csv", out / "runs.csv", "--latex", out / "table.tex")
    return typed(*words(bank, out, "--method", "ncm", "--method", QUICK, *files, jobs=2)), out


def test_the_table_has_the_methods_and_the_controls(bench):
    done, out = bench
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("bench: ") for line in done.stderr.splitlines())  # progress, on a slow machine
    assert "folder: 4 base classes, then 3 sessions of 2-way 5-shot" in done.stdout
    assert "none features, mean ± standard deviation of 2 runs (draws: 2)" in done.stdout
    assert list(table_of(done.stdout)) == METHODS
    written = " and ".join(str(out / name) for name in ("bench.png", "table.json", "runs.csv", "table.tex"))
    assert f"wrote {written}; one result file for each run in {out}" in done.stdout


def test_csv_has_every_run_and_latex_every_method(bench):
    lines = (bench[1] / "runs.csv").read_text().splitlines()
    assert lines[0] == "method,draw,seed,base,hm_1,hm_2,hm_3,base_1,base_2,base_3,novel_1,novel_2,novel_3,ahm,fa"
    assert [line.split(",")[-14] for line in lines[1:]] == ["0", "1"] * 4
    text = (bench[1] / "table.tex").read_text()
    assert text.startswith(r"\begin{tabular}{lcccccc}")
    assert text.count(r" \\") == 2 + len(METHODS)


def test_every_row_is_told_where_it_stands_against_the_control(bench):
    lines = [line for line in bench[0].stdout.splitlines() if "the curve of ncm_metric" in line]
    assert [line.partition(": after")[0] for line in lines] == [method for method in METHODS if method != "ncm_metric"]


def test_the_json_has_the_agreed_keys(bench):
    data = json.loads((bench[1] / "table.json").read_text())
    assert data.keys() >= {"scenario", "draws", "rows"}
    assert (data["scenario"], data["draws"]) == ("folder", 2)
    assert [row["method"] for row in data["rows"]] == METHODS
    for row in data["rows"]:
        assert row.keys() >= KEYS
        assert len(row["hm"]) == 3
        assert all(isinstance(row[key], float) for key in KEYS - {"method", "hm"})


def test_the_printed_figures_are_those_of_the_files(bench):
    done, out = bench
    printed = table_of(done.stdout)
    runs = [Result.load(path) for path in out.glob("folder-*.json")]
    assert len(runs) == 8
    for row in json.loads((out / "table.json").read_text())["rows"]:
        own = [run.summary for run in runs if run.heading.label == row["method"]]
        assert row["ahm"] == pytest.approx(sum(summary.ahm for summary in own) / 2, rel=1e-5)
        assert row["fa"] == pytest.approx(sum(summary.fa for summary in own) / 2, rel=1e-5)
        _, base, *hm = printed[row["method"]][:5]
        assert base == f"{row['base_acc']:.2f}"
        assert hm == [f"{value:.1f}" for value in row["hm"]]
        assert printed[row["method"]][5:7] == [f"{row['ahm']:.2f}", f"±{row['ahm_std']:.2f}"]


def test_draws_have_results_of_their_own(bench):
    runs = [Result.load(path) for path in bench[1].glob("folder-*.json")]
    assert sorted((run.heading.label, run.heading.draw) for run in runs) == sorted(
        (m, d) for m in METHODS for d in (0, 1)
    )


def test_the_picture_is_one(bench):
    with Image.open(bench[1] / "bench.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300


def test_a_second_call_says_that_all_is_done_and_does_nothing_again(bench, bank, capsys):
    done, out = bench
    before = {path: path.stat().st_mtime_ns for path in out.glob("folder-*.json")}
    assert call(*words(bank, out, "--method", "ncm", "--method", QUICK, jobs=2)) == 0
    said = capsys.readouterr()
    assert sentence(said.err) == f"8 of 8 runs are finished in {out}"
    assert table_of(said.out) == table_of(done.stdout)
    assert {path: path.stat().st_mtime_ns for path in out.glob("folder-*.json")} == before


def test_what_is_missing_is_done_and_the_rest_is_kept(bench, bank, tmp_path, capsys):
    for path in bench[1].glob("folder-ncm*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert call(*words(bank, tmp_path, "--method", QUICK, draws=1)) == 0
    said = capsys.readouterr()
    assert sentence(said.err) == f"3 of 4 runs are finished in {tmp_path}"
    assert list(table_of(said.out)) == [QUICK, "ncm_metric", "ncm", "ncm_bias"]


def test_a_damaged_result_is_named_with_the_way_out(bench, bank, tmp_path, capsys):
    for path in bench[1].glob("folder-ncm*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = next(tmp_path.glob("folder-ncm-draw0-*.json"))
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert call(*words(bank, tmp_path, "--method", "ncm")) == 1
    assert f"{damaged} is damaged or not a whole result file" in capsys.readouterr().err.splitlines()[-1]
    damaged.unlink()
    assert call(*words(bank, tmp_path, "--method", "ncm")) == 0


@pytest.mark.parametrize(
    ("more", "summary", "figures"),
    [
        (["--way", 3], "2 sessions of 3-way 5-shot", 2),
        (["--shot", 1], "3 sessions of 2-way 1-shot", 3),
        (["--sessions", 0], "0 sessions of 2-way 5-shot", 0),
        (["--seeds", 2], "of 2 runs (draws: 1)", 3),
        (["--seed", 7], "none features, one run", 3),
    ],
    ids=str,
)
def test_the_bank_can_be_cut_otherwise(bank, tmp_path, capsys, more, summary, figures):
    file = tmp_path / "table.json"
    assert call(*words(bank, tmp_path, "--method", "ncm", "--json", file, *more, draws=1)) == 0
    said = capsys.readouterr()
    assert summary in said.out
    assert said.err == ""
    assert [len(row["hm"]) for row in json.loads(file.read_text())["rows"]] == [figures] * 3


def test_the_picture_goes_where_it_is_wanted(bank, tmp_path, capsys):
    for name in ("curve.svg", "plain"):
        assert call(*words(bank, tmp_path / "out", "--method", "ncm", "--figure", tmp_path / name, draws=1)) == 0
        assert f"wrote {tmp_path / name};" in capsys.readouterr().out
        assert (tmp_path / name).is_file()
    assert not (tmp_path / "out" / "bench.png").exists()


def test_the_methods_are_listed(capsys):
    assert call("methods") == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines[1:]]
    assert listed == sorted(listed)
    assert {"concm", "ncm", "ncm_bias"} <= set(listed)
    assert "class names" in next(line for line in lines if line.startswith("concm"))


def test_a_method_is_shown_with_its_settings_as_it_would_run(capsys):
    assert call("methods", "orco:short,lr=0.02") == 0
    said = capsys.readouterr().out
    assert "presets: orco:mini_imagenet, orco:cub200, orco:short" in said
    shown = {line.split()[0]: line.split()[1] for line in said.splitlines() if line.startswith(("hidden ", "lr "))}
    assert shown == {"hidden": "512", "lr": "0.02"}
    assert call("methods", "orko") == 2
    assert "did you mean orco?" in capsys.readouterr().err


def test_the_commands_have_help(capsys):
    for command in ("bench", "methods"):
        assert call(command, "--help") == 0
        assert f"concm {command}" in capsys.readouterr().out


def test_all_on_equal_footing_are_those_that_can_stand_there(bank, tmp_path, monkeypatch):
    some = {name: entry for name, entry in entries().items() if name in ("concm", "ncm", "oracle", "teen")}
    monkeypatch.setattr(methods, "entries", lambda: some)
    assert call(*words(bank, tmp_path, "--method", "equal:all", "--json", tmp_path / "table.json", draws=1)) == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["equal:ncm", "equal:teen", "ncm_metric", "ncm", "ncm_bias"]


# what it refuses


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("nmc", "no method called 'nmc'; did you mean ncm?"),
        ("", "no method called ''"),
        ("concm:alpa=1", "no setting called 'alpa'; did you mean alpha?"),
        ("concm:calibration.step=1", "no setting called 'step'; did you mean steps?"),
        ("concm:publishd", "did you mean published?"),
        ("concm:alpha=much", "'alpha=much': it takes a number"),
        ("concm:views=2", "'views=2': it takes true or false"),
        ("concm:structure=circle", "'structure=circle': it takes matched, greedy"),
        ("concm:calibration=3", "set one of its parts, such as calibration."),
        ("concm:alpha.beta=3", "alpha has no settings of its own"),
        ("ncm:alpha=1", "method ncm has no settings"),
        ("concm:structure=fixed", "needs total=N"),
        ("equal:nmc", "no method called 'nmc'; did you mean ncm?"),
        ("equal:concm", "concm cannot stand on equal footing: it has that metric itself"),
        ("equal:oracle", "oracle cannot stand on equal footing: it works on more than the features of the shots"),
    ],
)
def test_a_method_or_setting_that_there_is_not_is_refused(bank, tmp_path, capsys, method, why):
    assert why in refusal(capsys, *words(bank, tmp_path / "out", "--method", method), code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change",
    [
        "width=0",
        "hidden=0",
        "steps=-1",
        "base_steps=-1",
        "per_base=0",
        "per_novel=-1",
        "replay=-1",
        "lr=-1",
        "alpha=nan",
        "whitening=-1",
        "temperature=0",
        "calibration.hidden=0",
        "calibration.shots=0",
        "calibration.steps=-1",
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(bank, tmp_path, capsys, change):
    said = refusal(capsys, *words(bank, tmp_path / "out", "--method", f"concm:{change}"), code=2)
    assert change.partition("=")[0].rpartition(".")[2] in said
    assert not (tmp_path / "out").exists()


def test_a_fixed_structure_for_too_few_classes_is_refused(bank, tmp_path, capsys):
    asked = words(bank, tmp_path, "--method", f"{QUICK},structure=fixed,total=5", draws=1)
    assert "total=5" in refusal(capsys, *asked, code=2)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--draws", 0], "--draws must be at least 1"),
        (["--jobs", 0], "--jobs must be at least 1"),
        (["--seeds", 0], "--seeds must be at least 1"),
        (["--seed", -1], "--seed must be at least 0"),
        (["--way", 0], "--way must be at least 1"),
        (["--shot", 99], "--shot can be at most 8"),
        (["--sessions", 9], "6 novel classes make 3 sessions of 2-way, not 9"),
    ],
    ids=str,
)
def test_a_number_that_makes_no_sense_is_refused(bank, tmp_path, capsys, more, why):
    asked = ["bench", "--bank", bank, "--out", tmp_path / "out", "--method", "ncm"]
    assert why in refusal(capsys, *asked, *more, code=2)
    assert not (tmp_path / "out").exists()


def test_a_bank_that_is_none_is_refused(bank, tmp_path, capsys):
    truncated, text = tmp_path / "truncated", tmp_path / "text"
    truncated.write_bytes(bank.read_bytes()[:-10])
    text.write_text("not a bank\n" * 10)
    for file in (truncated, text, tmp_path):
        said = refusal(capsys, *words(file, tmp_path / "out"), code=1)
        assert said.startswith(f"{file} is damaged or not a bank file")
    assert (
        refusal(capsys, *words(tmp_path / "none", tmp_path / "out"), code=1) == f"no bank file at {tmp_path / 'none'}"
    )
    assert not (tmp_path / "out").exists()


def test_a_scenario_without_a_bundled_bank_is_refused(tmp_path, capsys):
    asked = ["--out", tmp_path / "out"]
    assert "no feature bank of imagenet1k ships with concm" in refusal(capsys, "bench", "imagenet1k", *asked, code=2)
    assert "did you mean cifar100?" in refusal(capsys, "bench", "cifar10", *asked, code=2)
    assert not (tmp_path / "out").exists()


def test_a_bank_of_another_scenario_than_the_one_asked_for_is_refused(bank, tmp_path, capsys):
    _, *asked = words(bank, tmp_path, "--method", "ncm", draws=1)
    said = refusal(capsys, "bench", "cub200", *asked, code=2)
    assert said == f"{bank} holds features of scenario folder, not of cub200"
    assert call("bench", "folder", *asked) == 0


def test_more_draws_than_anybody_can_wait_for_are_refused(bank, tmp_path, capsys):
    said = refusal(capsys, *words(bank, tmp_path / "out", "--method", "ncm", draws=10**8), code=2)
    assert said == "--draws must be at most 10,000, not 100,000,000"
    assert not (tmp_path / "out").exists()


def test_published_shots_that_are_not_there_are_refused(bank, tmp_path, capsys):
    said = refusal(capsys, *words(bank, tmp_path / "out", "--splits", tmp_path, "--method", "ncm"), code=1)
    assert said.startswith(f"no index list at {tmp_path / 'session_2.txt'}")


@pytest.mark.parametrize("below", ["", "folder"])
def test_results_that_cannot_be_written_are_refused(bank, tmp_path, capsys, below):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / below
    said = refusal(capsys, *words(bank, out, "--method", "ncm", draws=1), code=1)
    assert said.startswith(f"cannot write results to {out}")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(bank, tmp_path, capsys):
    out = tmp_path / "read-only"
    out.mkdir(mode=0o555)
    said = refusal(capsys, *words(bank, out, "--method", "ncm", draws=1), code=1)
    assert said.startswith(f"cannot write results to {out}")


@pytest.mark.parametrize("option", ["--json", "--figure"])
def test_a_table_or_picture_that_cannot_be_written_is_named_and_the_runs_are_kept(bank, tmp_path, capsys, option):
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file" / "x.png", tmp_path):
        assert call(*words(bank, tmp_path / "out", "--method", "ncm", option, place, draws=1)) == 1
        assert str(place) in capsys.readouterr().err.splitlines()[-1]
        assert len(list((tmp_path / "out").glob("folder-*.json"))) == 3


def test_mistakes_typed_into_a_shell_show_no_traceback(bank, tmp_path):
    done = typed(*words(bank, tmp_path, "--method", "ncm", "--splits", tmp_path / "none", draws=1, jobs=2))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no index list at {tmp_path / 'none'}" in sentence(done.stderr)


# interrupted


def slow_disk(folder: Path) -> dict[str, str]:
    """An environment in which every file takes half a second to write."""
    (folder / "sitecustomize.py").write_text(
        "import os, time\nfsync = os.fsync\nos.fsync = lambda file: (time.sleep(0.5), fsync(file))\n"
    )
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {**environment(), "PYTHONPATH": path}


def gone(group: int) -> bool:
    """Whether no process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def interrupted(asked: list[object], out: Path, folder: Path, number: signal.Signals) -> tuple[int, str]:
    """Start the command as a shell does, and send the signal once a result is there and the next is being written."""
    errors = folder / "errors"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [str(CONCM), *map(str, asked)],
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=slow_disk(folder),
            start_new_session=True,
        )
    try:
        wait_until(lambda: any(out.glob("folder-*.json")) and any(out.glob(".draft-*")))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does: to the whole group
        else:
            process.send_signal(number)
        code = process.wait(300)
        wait_until(lambda: gone(process.pid))
    finally:
        if not gone(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code, errors.read_text()


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_the_same_command_does_the_rest(bank, tmp_path, capsys):
    out = tmp_path / "out"
    code, said = interrupted(words(bank, out, "--method", "ncm", draws=4, jobs=2), out, tmp_path, signal.SIGINT)
    assert code == 1
    assert sentence(said) == f"interrupted; finished runs are in {out}, the same command does the rest"
    kept = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert 1 <= len(kept) < 12
    assert [path for path in kept if path.suffix != ".json"] == []  # no drafts
    assert all(Result.load(path).summary for path in kept)
    assert call(*words(bank, out, "--method", "ncm", draws=4)) == 0
    assert sentence(capsys.readouterr().err) == f"{len(kept)} of 12 runs are finished in {out}"
    assert len(list(out.glob("folder-*.json"))) == 12
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


@pytest.mark.slow
def test_no_process_outlives_a_bench_that_was_killed(bank, tmp_path):
    out = tmp_path / "out"
    code, _ = interrupted(words(bank, out, "--method", "ncm", draws=4, jobs=2), out, tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL


# a method of one's own

OWN = '''
import torch
from concm.methods.ncm import NCM

class Mine(NCM):
    """Nearest class mean under another name."""
'''


def test_a_class_in_the_current_folder_runs_beside_the_others_by_its_file_or_module(bank, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    both = ("--method", "mine.py:Mine", "--method", "mine:Mine")
    asked = [str(CONCM), *map(str, words(bank, tmp_path / "out", *both, draws=2, jobs=2))]
    done = subprocess.run(
        asked, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = table_of(done.stdout)
    assert rows["mine.py:Mine"][1:] == rows["mine:Mine"][1:] == rows["ncm"][1:]


def test_a_class_that_cannot_be_imported_is_refused(bank, tmp_path, capsys):
    assert call(*words(bank, tmp_path, "--method", "nowhere:Mine")) == 2
    assert sentence(capsys.readouterr().err).startswith("cannot import the method 'nowhere:Mine'")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_class_of_one_s_own_runs_by_its_module_as_conformance_checks_it(bank, tmp_path, jobs, monkeypatch):
    (tmp_path / "own_shop.py").write_text("from concm.methods.ncm import NCM\n\n\nclass Mine(NCM):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    assert call("conformance", "own_shop:Mine") == 0
    out = tmp_path / "out"
    assert call(*words(bank, out, "--method", "own_shop:Mine", "--json", out / "x.json", draws=1, jobs=jobs)) == 0
    rows = json.loads((out / "x.json").read_text())["rows"]
    figures = {row["method"]: row["ahm"] for row in rows}
    assert figures["own_shop:Mine"] == figures["ncm"]
