"""Photos to look at: those that may be of another class, and those without which others would be recognised."""

from __future__ import annotations

import torch
from torch import Tensor

from concm.classifier.left_out import LeftOut

REACH = 4.0
"""Widths of a margin beyond which a photo is as good as right or wrong, whatever becomes of another one."""


def doubts(left_out: LeftOut) -> tuple[Tensor, Tensor]:
    """How doubtful the class of each photo (n,) is, and which other it looks like; −∞ where there is no doubt.

    A photo is like a class whose mean is near and that has a photo near it, and doubtful if that is more so of another
    class. Half of what is usual for its class is taken off, so that the one photo that is unlike the others of its
    class comes before those of two classes that look alike.
    """
    labels = left_out.album.labels
    alike = left_out.scores + left_out.nearest
    own = alike.gather(1, labels[:, None])[:, 0]
    rival = alike.scatter(1, labels[:, None], -torch.inf).max(1)
    lead = rival.values - own
    doubt = torch.full_like(lead, -torch.inf)
    for label in torch.unique(labels).tolist():
        rows = ((labels == label) & ~lead.isnan()).nonzero().flatten()
        if len(rows):
            doubt[rows] = lead[rows] - lead[rows].median() / 2
    return torch.where(lead > 0, doubt, -torch.inf), rival.indices


def harms(left_out: LeftOut) -> Tensor:
    """How many more of the other photos are expected to be right if each photo (n,) were not there.

    Without it, the mean of its class moves: photos of that class may come nearer to it, and those of other classes may
    be drawn to it less.
    """
    harm = torch.zeros(len(left_out.album.labels))
    for label in torch.unique(left_out.album.labels).tolist():
        rows = (left_out.album.labels == label).nonzero().flatten()
        if len(rows) > 1:
            harm[rows] = _drawn(left_out, label, rows) + _held(left_out, rows)
    return harm


def _drawn(left_out: LeftOut, label: int, rows: Tensor) -> Tensor:
    """What photos of other classes gain by each of the photos `rows` of this class not being there."""
    album, (values, which) = left_out.album, left_out.rivals
    near = left_out.margin.isfinite() & (album.labels != label) & (left_out.margin.abs() < REACH * left_out.width)
    near &= left_out.scores[:, label] > values[:, 0] - REACH * left_out.width
    others = near.nonzero().flatten()
    total = album.sums[label]
    cosines = album.units[others] @ total
    moved = (cosines[:, None] - album.units[others] @ album.units[rows].T) / (total - album.units[rows]).norm(dim=1)
    scores = left_out.scores[others, label][:, None] + moved - (cosines / total.norm())[:, None]
    second = torch.where(which[others, 0] == label, values[others, 1], values[others, 0])
    margin = left_out.own[others][:, None] - scores.maximum(second[:, None])
    gain: Tensor = (left_out.surely(margin) - left_out.surely(left_out.margin[others])[:, None]).sum(0)
    return gain


def _held(left_out: LeftOut, rows: Tensor) -> Tensor:
    """What the photos `rows` of one class gain by each other of them not being there."""
    units, groups = left_out.album.units[rows], left_out.groups[rows]
    gone = (groups[:, None] == groups) & (left_out.sizes[rows, None] > 1) | torch.eye(len(rows), dtype=torch.bool)
    rest = (~gone).to(units.dtype) @ units
    still = ~gone & (left_out.left[rows, None] > 1)
    along = (units * rest).sum(1, keepdim=True)
    length = (rest.square().sum(1, keepdim=True) - 2 * rest @ units.T + 1).clamp(min=1e-6).sqrt()
    moved = (along - units @ units.T) / length - along / rest.norm(dim=1, keepdim=True).clamp(min=1e-6)
    before = left_out.margin[rows][:, None]
    gain: Tensor = torch.where(still, left_out.surely(before + moved) - left_out.surely(before), 0.0).sum(0)
    return gain
