"""An exported classifier without torch: numpy, onnxruntime and Pillow are all that it takes.

    pip install --no-deps concm && pip install numpy pillow onnxruntime
    python -m concm.onnx zoo.onnx holiday/

Photos are prepared, answered and refused as the store does it, from the two files of `concm export --onnx`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concm.classifier.answers import UNKNOWN_RATE, Prediction, Predictions, check_rate, listed, many, whole
from concm.classifier.folders import left_out
from concm.classifier.photos import Photo, Picture, called, find_photos
from concm.classifier.structure import GOES_WITH, Structure
from concm.data.images import BrokenPicture
from concm.errors import ConcmError, Misuse, at_least, in_a_line, loading
from concm.runtime import onnxruntime

BATCH = 16


class Runner:
    """The network that `concm export` wrote, with what it knows: the structure file beside it, or another.

    Parameters
    ----------
    network
        The ONNX file.
    structure
        The structure file; a newer one, written after more was learned, goes with the same network.
    """

    def __init__(self, network: str | os.PathLike[str], structure: str | os.PathLike[str] | None = None) -> None:
        try:
            runtime = onnxruntime()
        except ImportError as error:
            raise Misuse("an exported classifier needs onnxruntime: pip install onnxruntime") from error
        path = Path(network)
        with loading(path, "exported network", "export it again"):
            if not path.is_file():
                raise FileNotFoundError
            try:
                self._session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
            except Exception as error:  # those of onnxruntime have no common type
                raise ValueError(in_a_line(error)) from error
            told = self._session.get_modelmeta().custom_metadata_map
            own = {name: json.loads(told[name]) for name in GOES_WITH if name in told}
        self._known = Structure.read(Path(structure or path.with_suffix(".structure.safetensors")))
        inputs = {item.name: item.shape for item in self._session.get_inputs()}
        same = all(own[name] == value for name, value in self._known.goes_with.items() if name in own)
        if not same or inputs.keys() != {"pixels", *self._known.tensors}:
            said = "were not exported from one classifier, or not by one version of concm; export both again"
            raise ConcmError(f"{path} and its structure file {said}")
        self._side = int(inputs["pixels"][1])

    @property
    def labels(self) -> list[str]:
        """The class names, in the order of `predict_proba`'s columns."""
        return list(self._known.labels)

    @property
    def version(self) -> int:
        """The version of the classifier that the structure file was written from."""
        return self._known.version

    def predict(
        self, pictures: Picture | Sequence[Picture], *, unknown_rate: float = UNKNOWN_RATE, top: int = 5
    ) -> Predictions:
        """Say what each picture shows; what cannot be read of a folder is in the result's `failures`.

        Its `remarks` count what a folder holds that is no photo by its name.
        """
        found = self.stream(listed(pictures), unknown_rate=unknown_rate, top=top)
        return Predictions.of(found if many(pictures) else map(whole, found), pictures)

    def stream(
        self, pictures: Sequence[Picture], *, unknown_rate: float = UNKNOWN_RATE, top: int = 5
    ) -> Iterator[Prediction | BrokenPicture]:
        """Predict pictures one by one; a picture that cannot be read gives its error."""
        check_rate(unknown_rate)
        at_least(1, top=top)
        for photos in self._read(pictures):
            seen = [photo for photo in photos if isinstance(photo, Photo)]
            answers = zip(*self._run(seen), strict=True)
            for photo in photos:
                if isinstance(photo, BrokenPicture):
                    yield photo
                else:
                    probabilities, familiarity = next(answers)
                    yield self._known.prediction(photo.name, probabilities, float(familiarity), unknown_rate, top)

    def predict_proba(self, pictures: Picture | Sequence[Picture]) -> NDArray[np.float32]:
        """Probabilities (n, classes) in the order of `labels`."""
        parts = [self._run([whole(photo) for photo in photos])[0] for photos in self._read(listed(pictures))]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.labels)), np.float32)

    def _read(self, pictures: Sequence[Picture]) -> Iterator[list[Photo | BrokenPicture]]:
        """Pictures decoded on all cores, a batch at a time."""

        def read(item: tuple[int, Picture]) -> Photo | BrokenPicture:
            name = called(item[1], item[0])
            try:
                return Photo.read(item[1], self._side, name)
            except BrokenPicture as error:
                return error

        numbered = list(enumerate(pictures))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(numbered), BATCH):
                yield list(pool.map(read, numbered[start : start + BATCH]))

    def _run(self, photos: list[Photo]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Probabilities (n, classes) and familiarity (n,)."""
        if not photos:
            return np.zeros((0, len(self.labels)), np.float32), np.zeros(0, np.float32)
        given = {"pixels": np.stack([photo.pixels for photo in photos]), **self._known.tensors}
        try:
            probabilities, familiarity = self._session.run(["probabilities", "familiarity"], given)
        except Exception as error:  # those of onnxruntime have no common type
            raise ConcmError(f"the network does not take this structure: {in_a_line(error)}") from error
        return probabilities, familiarity


def main(words: Sequence[str] | None = None) -> int:
    """`python -m concm.onnx`: one JSON object per photo, as `concm predict --json` prints it."""
    parser = argparse.ArgumentParser("python -m concm.onnx", description="Say what photos show, without torch.")
    parser.add_argument("network", type=Path, help="the ONNX file that `concm export` wrote")
    parser.add_argument("images", nargs="+", help="files, folders and globs")
    parser.add_argument("--structure", type=Path, help="the structure file, if it is not beside the network")
    parser.add_argument("--unknown-rate", type=float, default=UNKNOWN_RATE, help="share of known photos to refuse")
    parser.add_argument("--top", type=int, default=3, help="how many guesses to give")
    given = parser.parse_args(words)
    broken = 0
    try:
        runner = Runner(given.network, given.structure)
        for sentence in left_out(given.images):
            sys.stderr.write(f"concm: {sentence}\n")
        how: dict[str, Any] = {"unknown_rate": given.unknown_rate, "top": given.top}
        for found in runner.stream(find_photos(given.images), **how):
            if isinstance(found, BrokenPicture):
                broken += 1
                sys.stderr.write(f"concm: {found}\n")
            else:
                sys.stdout.write(json.dumps(asdict(found)) + "\n")
                sys.stdout.flush()
    except ConcmError as error:
        sys.stderr.write(f"concm: {error}\n")
        return error.code
    except BrokenPipeError:  # nobody reads on, as behind `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would be written at the end
        return 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
