"""Joint training: the reference that sees every image, with all classes counting alike."""

from __future__ import annotations

import torch

from concm.evaluation.worlds import World
from concm.methods import choose, joint, teach

torch.set_num_threads(1)


def test_it_trains_on_every_image_and_all_classes_count_alike(monkeypatch):
    seen = []
    plain = joint.learned_rows
    monkeypatch.setattr(joint, "learned_rows", lambda base, *others: seen.append(base) or plain(base, *others))
    choice = choose("joint")
    world = World.of(choice=choice)
    method = choice.build(seed=0, device="cpu")
    for session in world.sessions[:2]:
        teach(method, session)
    counts = torch.bincount(seen[-1].labels)
    assert len(set(counts.tolist())) == 1
    assert len(torch.unique(seen[-1].features, dim=0)) == len(torch.unique(method.images, dim=0))
    assert len(method.images) < len(seen[-1].labels)
