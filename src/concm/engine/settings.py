"""All settings of the engine, in one place; a result file records them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from concm.engine.calibration import CalibrationSettings
from concm.engine.memory import Around
from concm.errors import Misuse


@dataclass(frozen=True)
class Settings:
    """Defaults: chosen by validation on base classes (docs/engine.md); `published()` is the paper's form."""

    PRESETS: ClassVar = ("published", "full")

    whitening: float | None = 10.0
    "Shrinkage of the metric's whitening, in mean variances; none compares plain features (paper)."
    calibrate: bool = True
    "Complete prototypes by the attributes of their class (MPC)."
    alpha: float = 0.7
    "Share of the few-shot prototype in the calibrated one (paper: 0.6; Eq. 5)."
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    "Of the MPC network."
    views: bool = True
    "Count the shots' augmented views into prototypes and spreads, where the bank has them (paper: no)."
    spread: Literal["borrowed", "own"] = "borrowed"
    'Novel spreads: their own and that of similar base classes, or their own alone (paper\'s "standard").'
    beta: float = 0.6
    "Scale of the borrowed spread (paper, appendix)."
    gamma: float = 16.0
    "How similar a base class must be for its spread to count (paper, appendix)."
    noise: float = 3.0
    "Spread of all samples, in standard deviations (paper: 1)."
    around: Around = "exemplars"
    "What novel samples are drawn around (paper: prototype)."
    replay: int = 5
    "Exemplars kept of each novel class (paper: 5, and 0 and 1 studied)."
    structure: Literal["matched", "greedy", "random", "fixed", "learned"] = "matched"
    "Nearest simplex (DSM); a random one, assigned (GM) or not (RM); one for `total` classes (FS); or free vectors."
    total: int | None = None
    "Classes that a fixed structure reserves room for; nothing else needs it."
    loss: Literal["match", "match+scl", "match+contrast"] = "match"
    "Cross-entropy over the structure, with supervised contrast, or with contrast anchored in the structure (paper)."
    scale: float = 16.0
    "Of the cosines in the matching loss (paper: 1)."
    temperature: float = 0.07
    "Of the contrast (paper, appendix)."
    schedule: Literal["equal", "released"] = "equal"
    "Weights of base and novel samples: equal, or the released code's, which must know the number of `sessions`."
    sessions: int | None = None
    "Sessions to come, for the released schedule; nothing else needs it."
    width: int = 128
    "d_g to start with (paper: 128); it grows when classes outgrow it."
    hidden: int = 512
    "Of the projector (released code: 2048)."
    per_base: int = 8
    "Samples of a base class in a step."
    per_novel: int = 8
    "Samples of a novel class in a step."
    batch: int = 1024
    "Samples in a step at most; with more classes than that allows, each step takes some of them."
    base_steps: int = 30
    "Of the base session."
    steps: int = 20
    "Of each later session."
    lr: float = 1e-3
    "Peak rate of AdamW."
    weight_decay: float = 1e-2
    "Of AdamW."
    prototypes: float = 0.75
    "Share of the prototypes' cosines in the score; the rest is the structure's (paper: 0)."
    novel_bias: float = 0.07
    "Added to the scores of novel classes of five shots; with fewer it is more, see `likeness` (paper: 0)."
    likeness: float = 0.55
    "Cosine of two images of one class in the metric, from which it follows how the bias changes with the shots."

    def __post_init__(self) -> None:
        least = {"replay": 0, "width": 1, "hidden": 1, "per_base": 1, "per_novel": 1, "batch": 1, "base_steps": 0}
        least |= {"steps": 0, "noise": 0, "beta": 0, "whitening": 0, "weight_decay": 0, "total": 2, "sessions": 1}
        for name, value in least.items():
            if getattr(self, name) is not None and getattr(self, name) < value:
                raise Misuse(f"setting {name} must be at least {value}, not {getattr(self, name)}")
        if not (0 <= self.alpha <= 1 and 0 <= self.prototypes <= 1 and 0 <= self.likeness <= 1):
            raise Misuse("settings alpha, prototypes and likeness are between 0 and 1")
        if not (self.temperature > 0 and self.lr > 0 and self.scale > 0):
            raise Misuse("settings temperature, lr and scale must be positive")
        if self.structure == "fixed" and self.total is None:
            raise Misuse("structure=fixed reserves room for all classes to come, so it needs total=N")
        if self.schedule == "released" and self.sessions is None:
            raise Misuse("schedule=released switches half-way, so it needs sessions=N")

    @property
    def needs(self) -> tuple[str, ...]:
        """What a run uses beyond features and labels."""
        needs = {
            "class names": self.calibrate,
            "views of the shots": self.views,
            f"exemplars: {self.replay} a novel class": self.replay > 0,
            "number of classes to come": self.structure == "fixed",
            "number of sessions to come": self.schedule == "released",
        }
        return tuple(name for name, needed in needs.items() if needed)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        """Inverse of `dataclasses.asdict`; settings that a file does not name have their defaults."""
        return cls(**{**data, "calibration": CalibrationSettings(**data["calibration"])})

    @classmethod
    def published(cls) -> Settings:
        """The paper's algorithm on banked features; steps and batches are ours."""
        return cls(
            whitening=None,
            alpha=0.6,
            views=False,
            noise=1.0,
            around="prototype",
            loss="match+contrast",
            scale=1.0,
            hidden=2048,
            batch=10_000,
            base_steps=200,
            steps=100,
            prototypes=0.0,
            novel_bias=0.0,
        )

    @classmethod
    def full(cls) -> Settings:
        """The paper's samples a step and hidden units, and five times the steps: for a GPU, to see what haste costs."""
        return cls(hidden=2048, per_base=100, per_novel=50, batch=10_000, base_steps=150, steps=100)
