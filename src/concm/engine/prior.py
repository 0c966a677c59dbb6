"""What a name says of a class's prototype before the first photo: a Gaussian process over names.

The prototypes of the base classes are known exactly, and so is how akin their names are. A new name's prototype is
predicted from those of its kin, and leaving out one base class at a time tells how far such predictions miss. So the
trust in a name follows from what is known: with n shots of variance σ² and predictions that miss by τ, the best share
of the prediction in the prototype is (σ²/n) / (τ + σ²/n). It falls with the shots, and with a name that has no kin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from concm.engine.state import Growing

NOISE = 0.1
"""Variance of prototypes that no name explains, in units of the kinship of a name with itself."""


class NamePrior(Growing):
    """Predicts prototypes from kinship with the base classes.

    `miss` is the mean squared error of such predictions, and `apart` that of the mean of all base prototypes, which is
    all that can be said of a name without kin.
    """

    centre: Tensor
    weights: Tensor
    miss: Tensor
    apart: Tensor

    def __init__(self, centre: Tensor, weights: Tensor, miss: Tensor, apart: Tensor) -> None:
        super().__init__()
        self.centre, self.weights, self.miss, self.apart = centre, weights, miss, apart

    @classmethod
    def of(cls, kin: Tensor, prototypes: Tensor) -> NamePrior:
        """Fit to base prototypes (n, d) and the kinship (n, n) of their names."""
        centre = prototypes.mean(0)
        differences = (prototypes - centre).double()
        weights, left_out = _fitted(kin, differences)
        errors = (left_out, differences * len(kin) / max(1, len(kin) - 1))
        miss, apart = (error.square().sum(1).mean().to(prototypes.dtype) for error in errors)
        return cls(centre, weights.to(prototypes.dtype), miss, apart)

    @classmethod
    def empty(cls) -> NamePrior:
        """A prior into which a state can be loaded."""
        nothing = torch.empty(0)
        return cls(nothing, nothing, nothing, nothing)

    def predict(self, kin: Tensor) -> tuple[Tensor, Tensor]:
        """Prototypes (n, d) of names by their kinship (n, base) with the base classes, and how far they may miss."""
        kin = kin.to(self.weights)
        return self.said(kin @ self.weights, kin.any(1))

    def said(self, product: Tensor, akin: Tensor) -> tuple[Tensor, Tensor]:
        """The same, from the product (n, d) of kinship and `weights`, and which names are akin to any."""
        found = self.centre + product.to(self.centre)
        return found, torch.where(akin.to(found.device), self.miss, self.apart)


def left_out(kin: Tensor, prototypes: Tensor) -> Tensor:
    """What the names of base classes say (n, d), each by the prototypes of the others alone."""
    centre = prototypes.mean(0)
    ones = prototypes.new_ones(len(prototypes), 1)
    missed = _fitted(kin, torch.cat([prototypes - centre, ones], 1).double())[1].to(prototypes.dtype)
    shift = (centre - prototypes) / max(1, len(prototypes) - 1)  # of the centre, when a class is not in it
    return prototypes - missed[:, :-1] + shift * missed[:, -1:]


def _fitted(kin: Tensor, differences: Tensor) -> tuple[Tensor, Tensor]:
    """The weights (n, d) of base names, and by how much each class is missed that is left out."""
    noisy = kin.to(differences) + NOISE * torch.eye(len(kin), dtype=torch.float64, device=differences.device)
    noisy.diagonal().clamp_(min=1 + NOISE)  # a name is its own closest kin, even if nothing else is known of it
    inverse = torch.linalg.inv(noisy)
    weights = inverse @ differences
    return weights, weights / inverse.diagonal()[:, None]


def cosine(likeness: Tensor, said: Tensor, length: Tensor, share: Tensor, counts: Tensor) -> Tensor:
    """What a new image is expected to have with a prototype of so many shots, two of which have the cosine `likeness`.

    A `share` of it is the name's prediction, whose squared `length` and product with images (`said`) are known.
    """
    mean = (1 - share) * likeness + share * said
    variance = (1 - share) ** 2 * (likeness + (1 - likeness) / counts.clamp(min=1))
    return mean / (variance + 2 * share * (1 - share) * said + share**2 * length).clamp(min=1e-6).sqrt()


def trust(miss: Tensor, likeness: Tensor, counts: Tensor) -> Tensor:
    """The share of the name's prediction in a prototype of `counts` shots, two of which have the cosine `likeness`."""
    noise = (1 - likeness).clamp(min=1e-6) / counts
    return noise / (miss + noise)
