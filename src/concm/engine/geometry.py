"""Simplex equiangular tight frames (ETFs): the target structures that features are matched to.

A structure is (n, d): one unit vector for each class, every two of them at the same, largest possible angle (Eq. 6). It
spans n − 1 dimensions, so any d ≥ n − 1 will do. Everything is computed in float64, where the theorem is exact.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.assignment import assignment
from concm.errors import Misuse


def nearest_simplex(means: Tensor) -> Tensor:
    """The ETF that matches the class means (n, d) best (Theorem 1): no other one has a larger sum of inner products.

    The means are normalised first. Directions in which they do not differ are filled in arbitrarily, so it is an
    ETF whatever the means are: fewer than the dimension, nearly equal, or the same.
    """
    count, dimension = means.shape
    _fits(count, dimension)
    unit = F.normalize(means.double(), dim=1)
    if count == 1:
        return unit.to(means.dtype)
    basis = _centred_basis(count, unit.device)
    return _frame(basis, _polar(basis.T @ unit)).to(means.dtype)


def random_simplex(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """An ETF in a random position: float64, on the generator's device."""
    _fits(count, dimension)
    noise = torch.randn(dimension, max(1, count - 1), generator=generator, device=generator.device, dtype=torch.float64)
    rows = torch.linalg.qr(noise).Q.T
    return rows if count == 1 else _frame(_centred_basis(count, rows.device), rows)


def assigned(means: Tensor, targets: Tensor) -> Tensor:
    """The targets (m, d), m ≥ n, in the order that matches the means (n, d) best: the Hungarian assignment, (n, d)."""
    similarity = F.normalize(means.double(), dim=1) @ targets.double().T
    order = assignment(-similarity.cpu().numpy())
    return targets[torch.from_numpy(order).to(targets.device)].to(means.dtype)


def matching_rate(means: Tensor, structure: Tensor) -> float:
    """Mean cosine between class means and their structure vectors (SMR)."""
    return float(F.cosine_similarity(means.double(), structure.double(), dim=1).mean())


def widen(vectors: Tensor, dimension: int) -> Tensor:
    """Pad vectors (…, d) with zeros to (…, dimension); every inner product stays the same."""
    return F.pad(vectors, (0, dimension - vectors.shape[-1]))


def _polar(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows; directions that the matrix lacks are filled in arbitrarily.

    It uses the SVD, or for many rows an eigendecomposition of M Mᵀ, which is ten times as fast but squares the
    condition number, so that directions under a millionth of the strongest count as lacking there.
    """
    rows: Tensor
    if len(matrix) <= 512:
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        rows = left @ right
    else:
        values, vectors = torch.linalg.eigh(matrix @ matrix.T)
        lacking = int((values <= 1e-12 * values[-1]).sum())
        known = (vectors[:, lacking:].T @ matrix) / values[lacking:, None].sqrt()
        noise = torch.Generator(matrix.device).manual_seed(0)
        extra = torch.randn(matrix.shape[1], lacking, generator=noise, device=matrix.device, dtype=matrix.dtype)
        basis = torch.linalg.qr(torch.cat([known.T, extra], 1)).Q
        rows = vectors[:, lacking:] @ known + vectors[:, :lacking] @ basis[:, len(known) :].T
        rows = 1.5 * rows - 0.5 * (rows @ rows.T) @ rows  # Newton's step removes what rounding left
    return rows


def _fits(count: int, dimension: int) -> None:
    if count < 1 or count > dimension + 1:
        raise Misuse(f"a simplex of {count} classes needs at least {count - 1} dimensions, not {dimension}")


def _frame(basis: Tensor, rows: Tensor) -> Tensor:
    """The ETF (n, d) that orthonormal rows (n − 1, d) span."""
    count = len(basis)
    return math.sqrt(count / (count - 1)) * (basis @ rows)


def _centred_basis(count: int, device: torch.device) -> Tensor:
    """An orthonormal basis (n, n − 1) of the vectors that sum to zero (Helmert's): centring without its null space."""
    rank = torch.arange(1, count, dtype=torch.float64, device=device)
    basis = -torch.triu(torch.ones(count, count - 1, dtype=torch.float64, device=device))
    basis[1:] += rank.diag()
    return basis / (rank * (rank + 1)).sqrt()
