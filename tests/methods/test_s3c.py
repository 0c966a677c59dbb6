"""S3C: rows that are drawn, turns with rows of their own, and sessions that begin with class means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from concm.data import augment
from concm.data.augment import RANDOMS
from concm.errors import Misuse
from concm.evaluation.worlds import BASE, DIMENSION, TRANSFORM, Small, World
from concm.methods import choose, teach
from concm.methods.s3c import NOISE, TURNS, S3CSettings, TurnedAndStochastic, drawn
from concm.training.objective import Stage

torch.set_num_threads(1)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    pixels = torch.randint(256, (3, 16, 16, 3), generator=random, dtype=torch.uint8)
    return pixels, torch.tensor([0, 3, 1]), torch.rand(3, 1, RANDOMS, generator=random)


def made(**settings) -> TurnedAndStochastic:
    torch.manual_seed(0)
    return TurnedAndStochastic(Stage(Small(), DIMENSION, 4, 6, TRANSFORM), S3CSettings(**settings)).eval()


def taught(words: str, sessions: int = 3):
    choice = choose(words)
    world, method = World.of(choice=choice), choice.build(seed=0, device="cpu")
    for session in world.sessions[:sessions]:
        teach(method, session)
    return world, method


def test_a_row_is_its_mean_and_noise_times_its_spread():
    rows, noise = torch.zeros(4000, 2), torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    found = drawn(rows + 3, torch.tensor([0.0, 6.0]).expand(4000, 2), noise, 4.0)
    assert found.mean(0).tolist() == pytest.approx([3, 3], abs=0.1)
    assert found.std(0).tolist() == pytest.approx(F.softplus(torch.tensor([-4.0, 2.0])).tolist(), rel=0.05)


def test_every_turn_of_a_class_is_a_class_of_its_own(batch):
    pixels, labels, random = batch
    model = made(narrow=100.0)  # no spread, so nothing is drawn
    total = 0.0
    with torch.no_grad():
        for turn in range(TURNS):
            views = augment.weak(pixels, random[:, 0], TRANSFORM.size)
            features = model.backbone(model.ready(augment.turn(views, torch.full((3,), turn))))
            scores = 16 * F.normalize(features) @ F.normalize(model.rows).T
            total += float(F.cross_entropy(scores, labels * TURNS + turn)) / TURNS
        assert float(model(*batch, 0)["loss"]) == pytest.approx(total, rel=1e-4)


def test_noise_changes_with_the_numbers_of_a_step_and_with_nothing_else(batch):
    pixels, labels, random = batch
    model = made(narrow=0.0)
    other = random.clone()
    other[0, 0, -1] = (other[0, 0, -1] + 0.5) % 1
    with torch.no_grad():
        one, again, two = (float(model(pixels, labels, numbers, 0)["loss"]) for numbers in (random, random, other))
    assert one == again
    assert one != two
    assert float(model.noise.std()) == pytest.approx(1, abs=5 / NOISE**0.5)


def test_a_session_without_steps_adds_a_mean_for_every_turn():
    world, method = taught("s3c:steps=0", 2)
    session = world.sessions[1]
    shots = session.features[session.labels == BASE].view(-1, TURNS, DIMENSION)
    torch.testing.assert_close(method.rows.view(-1, TURNS, DIMENSION)[BASE], shots.mean(0))
    torch.testing.assert_close(method.rows[: BASE * TURNS], world.base.learned["rows"])
    assert method.means.shape == (BASE + 2, DIMENSION)


def test_training_tells_turns_and_classes_of_the_shots_apart_and_keeps_the_means_of_earlier_classes():
    found = {}
    for steps in (0, 100):
        world, method = taught(f"s3c:steps={steps},lr=0.1,kept=0", 2)
        session = world.sessions[1]
        shots = F.normalize(session.features.view(-1, DIMENSION))
        wanted = (TURNS * session.labels[:, None] + torch.arange(TURNS)).flatten()
        found[steps] = float(F.cross_entropy(16 * shots @ F.normalize(method.rows).T, wanted))
    assert found[100] < found[0]
    torch.testing.assert_close(method.means[:BASE], world.base.mean.view(BASE, TURNS, -1)[:, 0])


def test_features_of_another_base_session_are_refused():
    with pytest.raises(Misuse, match="train with `concm train --method s3c`"):
        choose("s3c").build(seed=0, device="cpu").fit_base(World.of().base)
