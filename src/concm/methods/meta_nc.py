"""MetaNC: optimal inter-class margins by neural-collapse-based meta-learning (Ran, Li, Li and others, IP&M 2024).

As in C-FSCIL one layer maps features to a wide space and prototypes are what it makes of mean features. Its episodes
ask for neural collapse instead of orthogonality: classes should have the cosine of a simplex of all classes to come,
−1 / (K − 1), and whatever deviates from it to either side counts against the true class. Later sessions train nothing.

Here: pre-training with fused classes is left to the backbone, and the layer begins at random, where the authors' has
been pre-trained. Episodes show images as they are stored, without crops and flips, and 3,500 of them at twenty times
the rate stand for 70 000. A bank's features are unit vectors, and are made about as long again as the backbone's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.methods.c_fscil import SIZE_HELP, Hyperdimensional, softabs, with_empty_rows
from concm.methods.registry import TOTAL, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class MetaNCSettings(Checked):
    """The settings of MetaNC; what the paper changes for other data concerns the backbone."""

    size: float = setting(1.0, SIZE_HELP, above=0)
    width: int = setting(512, "Dimensions of the wide space (authors' code).", least=1)
    steepness: float = setting(
        10.0, "Steepness of the softabs of a deviation from the simplex (authors' code).", above=0
    )
    scale: float = setting(10.0, "Scale of the cosines in the loss (authors' code).", above=0)
    shot: int = setting(5, "Images of each base class behind a prototype of an episode (authors' code).", least=1)
    queries: int = setting(
        2,
        "Images of each base class to be recognised in an episode (chosen: for speed; authors' code: 10, which the "
        "loss averages over).",
        least=1,
    )
    steps: int = setting(3500, "Number of episodes (chosen, as for C-FSCIL; authors' code: 70 000).", least=0)
    lr: float = setting(
        0.2,
        "Rate in the episodes, which falls as in C-FSCIL (chosen, as there: twenty times that of the authors' code).",
        above=0,
    )


@method(
    "meta_nc",
    title="MetaNC: meta-learned neural collapse",
    paper="IP&M 2024",
    link="https://doi.org/10.1016/j.ipm.2024.103664",
    code="https://github.com/qihangran/metaNC-FSCIL",
    needs=(TOTAL,),
)
class MetaNC(Hyperdimensional):
    """C-FSCIL's layer, learned towards a simplex of all classes to come."""

    settings = MetaNCSettings()
    total = 0
    values = (*Hyperdimensional.values, "total")

    def fit_base(self, base: BaseSession) -> None:
        """Learn the layer for as many classes as there will be."""
        if base.total is None:
            raise Misuse("meta_nc learns margins for all classes to come, so it must be told their number")
        self.total = base.total
        super().fit_base(base)

    def learn(self, session: Session) -> None:
        """Add the mean of each new class's shots."""
        if session.classes.stop > self.total:
            raise Misuse(f"meta_nc learned margins for {self.total} classes, and class {session.classes.stop} comes")
        super().learn(session)

    def episode_loss(self, similarities: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy against deviations from the simplex."""
        return collapse_loss(similarities, labels, self.total, self.settings.scale, self.settings.steepness)


def collapse_loss(cosines: Tensor, labels: Tensor, total: int, scale: float, steepness: float) -> Tensor:
    """−s·cos_y + log(exp(s·cos_y) + Σ_j exp(s·φ(cos_j + 1 / (K − 1)))), with φ the softabs and j over all K classes.

    The cosine of a class that has not come yet is zero, since its prototype is (authors' code).
    """
    cosines = with_empty_rows(cosines, total)
    deviations = softabs(cosines + 1 / max(1, total - 1), steepness)
    true = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, labels[:, None], value=True)
    return F.cross_entropy(scale * torch.where(true, cosines, deviations), labels)
