"""All settings of the engine, in one place; a result file records them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from concm.engine.calibration import CalibrationSettings
from concm.engine.memory import Around
from concm.engine.operating import Lean
from concm.errors import Misuse
from concm.records import Checked, setting


@dataclass(frozen=True)
class Settings(Checked):
    """Settings of ConCM, chosen by validation on base classes (docs/engine.md).

    Every field carries its help and its bounds, which `dataclasses.fields` lists; these are the ones to try first.
    `full()` is a form for a GPU. The paper's own form is the method `concm:published` of the bench.

    Parameters
    ----------
    whitening
        Shrinkage of the metric, in mean variances; none compares plain features.
    calibrate
        How a class's name completes its prototype: by kinship (`names`), by the paper's `network`, or not (`none`).
    prototypes
        Share of the prototypes in the score; the rest is the structure's.
    heads
        Projectors, whose scores are averaged.
    lean
        Which accuracy to favour: over all classes (`base`), the harmonic mean (`novel`), or both (`even`).

    Examples
    --------
    >>> import concm, dataclasses
    >>> concm.Settings(alpha=0.5).alpha
    0.5
    >>> concm.Settings.full().hidden
    2048
    >>> next(field.metadata["help"] for field in dataclasses.fields(concm.Settings) if field.name == "pull")[:48]
    'How far few-shot prototypes are drawn to the bas'
    """

    PRESETS: ClassVar = ("full",)

    whitening: float | None = setting(
        3.0, "Shrinkage of the metric's whitening, in mean variances; none compares plain features (paper).", least=0
    )
    calibrate: Literal["names", "network", "none"] = setting(
        "names",
        "Complete few-shot prototypes by what their class's name says: by kinship of names in closed form, by the"
        " paper's network over attributes (MPC), or not at all.",
    )
    named: bool = setting(
        True, "Calibrate by the classes' names; without them all classes are as akin to each other, which is a control."
    )
    trust: float = setting(
        1.0, "Factor of the share that kinship gets by what is known of it: 0 trusts the shots alone.", least=0, most=1
    )
    pull: float = setting(
        0.5,
        "How far few-shot prototypes are drawn to the base classes that they look like, as a share of what would bring"
        " images of base classes nearest to their own: 0 leaves them where they are (paper).",
        least=0,
        most=10,
    )
    reach: float = setting(
        3.0,
        "Coordinates of a picture above this many times the mean are damped before prototypes are compared; 0 turns"
        " it off (paper).",
        least=0,
        most=1000,
    )
    alpha: float = setting(
        0.7, "Share of the few-shot prototype in the one calibrated by MPC (paper: 0.6; Eq. 5).", least=0, most=1
    )
    calibration: CalibrationSettings = setting(CalibrationSettings(), "Settings of the MPC network.")
    views: bool = setting(
        True, "Count the shots' augmented views into prototypes and spreads, where the bank has them (paper: no)."
    )
    spread: Literal["borrowed", "own"] = setting(
        "borrowed",
        'Spreads of novel classes: with those of similar base classes, or their own alone (the paper\'s "standard").',
    )
    beta: float = setting(0.6, "Scale of the borrowed spread (paper, appendix).", least=0)
    gamma: float = setting(16.0, "How similar a base class must be for its spread and mean to count (paper, appendix).")
    noise: float = setting(1.5, "Spread of all samples, in standard deviations (paper: 1).", least=0)
    around: Around = setting("exemplars", "Centres around which samples of novel classes are drawn (paper: prototype).")
    replay: int = setting(
        5, "Exemplars kept of each novel class (paper: 5, and 0 and 1 studied).", least=0, most=1_000_000
    )
    structure: Literal["matched", "greedy", "random", "fixed", "learned"] = setting(
        "matched",
        "Target structure: the nearest simplex (DSM); a random one, assigned (GM) or not (RM); one for `total` classes"
        " (FS); or free vectors.",
    )
    total: int | None = setting(
        None, "Classes that a fixed structure reserves room for; nothing else needs it.", least=2
    )
    loss: Literal["match", "match+scl", "match+contrast"] = setting(
        "match",
        "Loss of the projector: cross-entropy over the structure, alone, with supervised contrast, or with contrast"
        " anchored in the structure (paper).",
    )
    scale: float = setting(16.0, "Factor of the cosines in the matching loss (paper: 1).", above=0)
    temperature: float = setting(0.07, "Temperature of the contrast (paper, appendix).", above=0)
    width: int = setting(
        128, "Dimensions d_g of the structure at first (paper: 128); more classes widen it.", least=1, most=65_536
    )
    heads: int = setting(
        4, "Projectors, whose scores are averaged; one alone is mostly variance (paper: 1).", least=1, most=64
    )
    hidden: int = setting(256, "Width of each projector's hidden layer (released code: 2048).", least=1, most=65_536)
    per_base: int = setting(8, "Samples of each base class in a step.", least=1, most=10_000)
    per_novel: int = setting(8, "Samples of each novel class in a step.", least=1, most=10_000)
    batch: int = setting(
        512,
        "Largest number of samples in a step; if there are more, each step takes some of them.",
        least=1,
        most=1_000_000,
    )
    base_steps: int = setting(30, "Steps of the base session.", least=0, most=100_000)
    steps: int = setting(20, "Steps of each later session.", least=0, most=100_000)
    lr: float = setting(1e-3, "Peak rate of AdamW.", above=0)
    weight_decay: float = setting(1e-2, "Weight decay of AdamW.", least=0)
    prototypes: float = setting(
        0.85, "Share of the prototypes' cosines in the score; the rest is the structure's (paper: 0).", least=0, most=1
    )
    novel_bias: float | None = setting(
        None, "Constant added to the scores of novel classes; none derives it from what is known (paper: 0)."
    )
    lean: Lean = setting(
        "even",
        "What that constant makes best: expected accuracy over all classes (base), the harmonic mean of base and novel"
        " accuracy (novel), or both, the latter counted twice (even).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.structure == "fixed" and self.total is None:
            raise Misuse("structure=fixed reserves room for all classes to come, so it needs total=N")

    @property
    def needs(self) -> tuple[str, ...]:
        """What the engine uses beyond features and labels with these settings, the images it keeps among it.

        Those held out are for the operating point; with a constant of one's own the engine holds out none by itself.
        """
        held = "base images held out" if self.novel_bias is None else "base images that a bank holds out"
        kept = f"{self.replay} per novel class, {held}" if self.replay else held
        needs = {
            "class names": self.calibrate != "none" and self.named,
            "views of the shots": self.views,
            f"exemplars: {kept}": True,
            "number of classes to come": self.structure == "fixed",
        }
        return tuple(name for name, needed in needs.items() if needed)

    @classmethod
    def full(cls) -> Settings:
        """The paper's samples per step and hidden units, and five times the steps: for a GPU."""
        return cls(hidden=2048, per_base=100, per_novel=50, batch=10_000, base_steps=150, steps=100)
