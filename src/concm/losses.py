"""Contrastive losses, each a plain function of tensors."""

from __future__ import annotations

import torch
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
