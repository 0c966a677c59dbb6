"""Losses, each a plain function of tensors: matching to a structure, and contrast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def supervised_contrast(
    anchors: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, own: Tensor, temperature: float
) -> Tensor:
    """Khosla et al., NeurIPS 2020 (L_out): pull each anchor (n, d) to the `others` (m, d) that share its label.

    All vectors are unit-length; `own` (n,) is each anchor's own position among the others, which is left out.
    With one label per picture instead of per class this is SimCLR's loss.
    """
    logits = anchors @ others.T / temperature
    itself = torch.arange(len(others), device=own.device) == own[:, None]
    log_share = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (labels[:, None] == other_labels) & ~itself
    per_anchor = (log_share * positive).sum(1) / positive.sum(1).clamp(min=1)
    return -per_anchor.mean()


def matching(vectors: Tensor, labels: Tensor, structure: Tensor, *, scale: float = 1.0) -> Tensor:
    """L_Match (Eq. 13): cross-entropy of unit vectors (n, d) over their cosines to the structure (classes, d).

    The paper's cosines are bare (`scale` 1).
    """
    return F.cross_entropy(scale * vectors @ structure.T, labels)


def anchored_contrast(
    vectors: Tensor, labels: Tensor, structure: Tensor, anchors: Tensor, temperature: float
) -> Tensor:
    """L_Cont (Eq. 14): supervised contrast in which the structure vectors of the classes `anchors` (a,) take part.

    A class's structure vector is one more positive of its samples and a negative of all others, but no anchor itself.
    (The printed equation lacks the logarithm; this is the loss of Khosla et al. that it cites.)
    """
    others = torch.cat([vectors, structure[anchors]])
    own = torch.arange(len(vectors), device=vectors.device)
    return supervised_contrast(vectors, labels, others, torch.cat([labels, anchors]), own, temperature)
