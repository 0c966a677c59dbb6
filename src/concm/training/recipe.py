"""All hyper-parameters of a base session, in one place; a run's file records them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from concm.errors import Misuse, at_least


@dataclass(frozen=True)
class Schedule:
    """What every base session has; the defaults are those of our own."""

    epochs: int = 400
    "Passes over the base images; the last one counts, nothing is selected."
    batch: int = 512
    "Images a step over all processes, however many views each has."
    lr: float = 0.2
    "Peak learning rate of SGD with Nesterov momentum 0.9, cosine to zero."
    warmup: float = 5.0
    "Epochs of linear warm-up."
    weight_decay: float = 1.5e-3
    "On matrices and kernels; none on biases and norms."
    seed: int = 0
    "Of initial weights, order and augmentation."

    def __post_init__(self) -> None:
        at_least(0, seed=self.seed, warmup=self.warmup)
        for name, value in {"epochs": self.epochs, "batch": self.batch, "lr": self.lr}.items():
            if not value > 0:
                raise Misuse(f"--{name} must be positive, not {value}")
        at_least(2, batch=self.batch)

    def to_json(self) -> dict[str, Any]:
        """All values."""
        return asdict(self)


@dataclass(frozen=True)
class Recipe(Schedule):
    """Ours; defaults: what docs/base-session.md found best by validation on base classes (CIFAR-100, ResNet-12)."""

    smoothing: float = 0.1
    "Label smoothing of the cross-entropy."
    head: Literal["linear", "cosine"] = "linear"
    "The classifier that is thrown away afterwards; cosine is scaled by 16."
    turned: float = 0.5
    "Share of pictures given a quarter, half or three-quarter turn, each a class of its own; 0 does without."
    contrast: float = 0.5
    "Weight of the contrastive losses beside the cross-entropy."
    self_share: float = 0.2
    "Share of SimCLR in them; the rest is supervised contrast."
    temperature: float = 0.1
    "Of both contrastive losses."
    scale_min: float = 0.3
    "Smallest area of the strong view's crop."
    jitter: float = 0.4
    "Brightness, contrast and saturation of the strong view."
    grey: float = 0.2
    "Share of strong views without colour."
    cutout: float = 0.5
    "Side of the square cut out of the weak view, as a share of the picture's."

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, jitter=self.jitter, contrast=self.contrast)
        if not self.temperature > 0:
            raise Misuse(f"--temperature must be positive, not {self.temperature}")
        shares = {"self-share": self.self_share, "smoothing": self.smoothing, "grey": self.grey}
        shares |= {"cutout": self.cutout, "turned": self.turned}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise Misuse(f"--{name} is a share between 0 and 1, not {share}")
        if not 0 < self.scale_min <= 1:
            raise Misuse(f"--scale-min lies between 0 and 1, not {self.scale_min}")
