"""All hyper-parameters of a base session, in one place; a run's file records them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from concm.records import Checked, setting


@dataclass(frozen=True)
class Schedule(Checked):
    """The schedule that every base session has; the defaults are those of our own."""

    epochs: int = setting(400, "Passes over the base images; the last epoch counts, none is selected.", above=0)
    batch: int = setting(512, "Images per step over all processes, however many views each image has.", least=2)
    lr: float = setting(0.2, "Peak learning rate of SGD with Nesterov momentum 0.9, cosine to zero.", above=0)
    warmup: float = setting(5.0, "Epochs of linear warm-up.", least=0)
    weight_decay: float = setting(1.5e-3, "Weight decay of matrices and kernels; biases and norms have none.")
    seed: int = setting(0, "Seed of initial weights, order and augmentation.", least=0)
    held_out: float = setting(0.0, "Share of each base class's images that is not trained on.", least=0, below=1)


@dataclass(frozen=True)
class Recipe(Schedule):
    """Our own recipe; defaults were best in validation on base classes (CIFAR-100, ResNet-12; docs/base-session.md)."""

    held_out: float = setting(
        0.02,
        "Share of each base class's images that is not trained on, so that it can be known how base classes do on "
        "pictures the backbone has not seen: the operating point needs it.",
        least=0,
        below=1,
    )
    smoothing: float = setting(0.1, "Label smoothing of the cross-entropy.", least=0, most=1)
    head: Literal["linear", "cosine"] = setting(
        "linear", "Classifier of the base session, which is not kept; the cosine classifier is scaled by 16."
    )
    turned: float = setting(
        0.5,
        "Share of pictures given a quarter, half or three-quarter turn, each with its own classes; 0 turns none.",
        least=0,
        most=1,
    )
    contrast: float = setting(0.5, "Weight of the contrastive losses beside the cross-entropy.", least=0)
    self_share: float = setting(
        0.2, "Share of SimCLR in the contrastive losses; the rest is supervised contrast.", least=0, most=1
    )
    temperature: float = setting(0.1, "Temperature of both contrastive losses.", above=0)
    views: int = setting(
        2, "Views of each picture in a step: a weak and a strong one, or the strong one alone.", least=1, most=2
    )
    side: float = setting(
        1.0,
        "Side of the views as a share of the pictures that are read later: less costs less, and crops look larger than "
        "they will be.",
        above=0,
        most=1,
    )
    side_first: float = setting(
        1.0,
        "Side of the views in the first half of the epochs, as a share of that in the last quarter; half way between "
        "in the third. Small views cost less.",
        above=0,
        most=1,
    )
    scale_min: float = setting(0.3, "Smallest area of the strong view's crop.", above=0, most=1)
    jitter: float = setting(
        0.4, "Strength of changes in brightness, contrast and saturation of the strong view.", least=0
    )
    grey: float = setting(0.2, "Share of strong views without colour.", least=0, most=1)
    weak_min: float = setting(
        1.0, "Smallest area of the weak view's crop; 1 shifts the picture instead of cropping it.", above=0, most=1
    )
    cutout: float = setting(
        0.5, "Side of the square cut out of the weak view, as a share of the picture's.", least=0, most=1
    )
