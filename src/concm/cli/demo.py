"""Stories on real photos."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

demo = App(name="demo", help="A story on real photos, from the first class to the page that shows it.")


@demo.command(name="photos")
def demo_photos(
    *,
    out: Path = Path("runs/demo"),
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Teach a classifier a shop's groceries: eight classes, six more in three sessions, an unknown, and an undo.

    Parameters
    ----------
    out
        Where the store and the page are written; a store from before is replaced.
    seed
        Seed of the choice of photos that are shown and taught.
    device
        Where to compute; `auto` uses a GPU if there is one.
    """
    from concm.demo.story import groceries

    groceries(out, seed=seed, device=device)
