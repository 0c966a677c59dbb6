"""Every registered method keeps the contract, and the suite catches those that do not."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from concm.evaluation import conformance
from concm.evaluation.conformance import CHECKS
from concm.evaluation.course import Course
from concm.evaluation.worlds import World
from concm.methods import NAMES, PICTURES, VIEWS, Choice, Entry, Learner, choice_of, choose, entries
from concm.methods.ncm import NCM
from concm.methods.picture_base import PictureLearner
from concm.methods.registry import _registered
from tests.support.tiny import call, sentence

torch.set_num_threads(1)  # bit for bit only holds for one number of threads


SMALL = {
    "alice": "width=128",
    "bidist": "iterations=20",
    "c_fscil": "steps=200",
    "mamba_fscil": "short,state=16,rank=16,inner=64,width=64",
    "meta_nc": "steps=200",
    "orco": "short,hidden=256,batch=8,base_weight=0.6",  # as on CUB200: see the next test for CIFAR-100's
    "ranpac": "width=200,samples=100",
}


def test_a_plain_class_with_three_verbs_is_checked_for_all_but_its_state():
    class Plain:
        """Nearest class mean."""

        def fit_base(self, base):
            self.means = base.mean

        def learn(self, session):
            self.means = torch.cat([self.means, session.class_means()])

        def scores(self, features):
            return F.normalize(features) @ F.normalize(self.means).T

    found = dict(conformance.run(choice_of(Plain)))
    assert set(found.values()) == {None}
    assert "each image is scored by itself" in found
    assert "memory is reported" not in found


def test_orco_loses_base_classes_of_a_small_world_where_they_have_no_cross_entropy_in_sessions():
    course = Course(choose("orco:short,hidden=256,batch=8,base_weight=0"))
    with pytest.raises(conformance.Broken, match="of easy base images get their label"):
        conformance.old_classes_keep_their_index(course)


def quick(name: str) -> Choice:
    """A method made small: the contract does not depend on how long it trains or how wide it is."""
    own = SMALL.get(name) or ("short" if "short" in getattr(entries()[name].settings, "PRESETS", ()) else None)
    return choose(name if own is None else f"{name}{',' if ':' in name else ':'}{own}")


@pytest.mark.parametrize("name", entries())
def test_every_method_keeps_the_contract(name):
    course = Course(quick(name))
    for check in CHECKS:
        check(course)


@pytest.mark.parametrize("name", ["ncm", "fecam", "gkeal", "adbs"])
def test_a_method_on_equal_footing_keeps_it_too(name):
    course = Course(choose(f"equal:{name}"))
    for check in CHECKS:
        check(course)


class Shuffles(NCM):
    def learn(self, session):
        super().learn(session)
        self.prototypes = self.prototypes.flip(0)


class Deaf(NCM):
    def learn(self, session):
        self.prototypes = torch.cat([self.prototypes, -torch.ones(len(session.classes), self.dimension)])


class Stuck(NCM):
    def learn(self, session):
        pass


class Moody(NCM):
    def scores(self, features):
        return super().scores(features) + 1e-3 * torch.rand(1)


class Forgetful(NCM):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.prototypes = self.prototypes + 1e-6


class Reader(NCM):
    def learn(self, session):
        super().learn(session)
        self.prototypes[-1] *= 1 + 0.1 * (len(session.names[0]) % 2 - 0.5) * F.one_hot(torch.tensor(0), self.dimension)


class Prophet(NCM):
    def fit_base(self, base):
        super().fit_base(base)
        self.prototypes = self.prototypes + 1e-3 * (base.total or 0) * F.one_hot(torch.tensor(0), self.dimension)


class Hoarder(Learner):
    kept = ("images", "labels")

    def fit_base(self, base):
        base = self.begin(base)
        self.images, self.labels = base.features, base.labels

    def learn(self, session):
        self.images = torch.cat([self.images, session.features])
        self.labels = torch.cat([self.labels, session.labels])

    def scores(self, features):
        near = F.normalize(features) @ F.normalize(self.images).T
        classes = int(self.labels.max()) + 1
        return torch.stack([near[:, self.labels == label].max(1).values for label in range(classes)], 1)


class Turner(NCM):
    """It keeps single images, whose features are turned, so that they are not found among those that it was given."""

    kept = ("prototypes", "some")

    def fit_base(self, base):
        super().fit_base(base)
        self.some = base.features[:0]

    def keep(self, images):
        turn = torch.linalg.qr(torch.ones(self.dimension, self.dimension) + torch.eye(self.dimension)).Q
        self.some = torch.cat([self.some, images @ turn])


class OfBase(Turner):
    def fit_base(self, base):
        super().fit_base(base)
        self.keep(base.features[::5])


class OfShots(Turner):
    def learn(self, session):
        super().learn(session)
        self.keep(session.features)


class Directions(NCM):
    """It keeps some directions of each class, in which its images differ: at most 16, and 4 of a novel class."""

    kept = ("prototypes", "directions")

    def fit_base(self, base):
        super().fit_base(base)
        self.directions = torch.cat([self.of(base, label)[:16] for label in base.classes])

    def learn(self, session):
        super().learn(session)
        self.directions = torch.cat([self.directions, *(self.of(session, label)[:4] for label in session.classes)])

    def of(self, session, label):
        own = session.features[session.labels == label]
        return torch.linalg.svd(own - own.mean(0), full_matrices=False).Vh


class Normed(NCM):
    """A network of its has buffers, which are no data: the vectors of its spectral norm."""

    def build(self):
        self.layer = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(self.dimension, self.dimension)))
        self.layer.append(nn.BatchNorm1d(self.dimension)).eval()


class Careless(NCM):
    def fit_base(self, base):
        base.features.mul_(2)
        super().fit_base(base)


class Silent(NCM):
    kept = ()


class Hidden(NCM):
    """Its whitening matrix is in the state, and nowhere in its memory."""

    def fit_base(self, base):
        super().fit_base(base)
        self.matrix = torch.linalg.inv(torch.cov(base.features.T) + 0.1 * torch.eye(self.dimension))


class Twofold(PictureLearner):
    """Its network counts, and a second one that was trained as well does not."""

    kept = ("prototypes",)

    def build(self):
        super().build()
        self.second = self.another()

    def fit_base(self, base):
        base = self.begin(base)
        self.second.load_state_dict(self.network.state_dict())
        self.prototypes = base.mean

    def learn(self, session):
        self.prototypes = torch.cat([self.prototypes, session.class_means()])

    def scores(self, pictures):
        return F.normalize(self.features(pictures)) @ F.normalize(self.prototypes).T

    @property
    def parameter_count(self):
        return sum(weight.numel() for weight in self.network.parameters())


class Spare(NCM):
    """It calls a network of its own a copy of the backbone, so that nothing counts it."""

    copies = ("spare",)

    def build(self):
        self.spare = nn.Linear(self.dimension, self.dimension)


class Sociable(NCM):
    def scores(self, features):
        return super().scores(features + 0.5 * features.mean(0))


class NoSmall(NCM):
    def learn(self, session):
        if len(session.classes) == 1:
            raise IndexError("one class only")
        super().learn(session)


BREAKERS = {
    Shuffles: "old_classes_keep_their_index",
    Deaf: "every_class_can_be_predicted",
    Stuck: "scores_grow_with_the_classes",
    Moody: "the_same_seed_gives_the_same_result",
    Forgetful: "state_goes_through_disk_bit_for_bit",
    Reader: "it_uses_no_more_than_it_declares",
    Prophet: "it_uses_no_more_than_it_declares",
    Hoarder: "it_keeps_no_image_that_it_does_not_declare",
    Careless: "the_world_is_left_alone",
    Silent: "memory_is_reported",
    OfBase: "it_keeps_no_image_that_it_does_not_declare",
    OfShots: "it_keeps_no_image_that_it_does_not_declare",
    Hidden: "memory_is_all_that_the_state_holds",
    Spare: "memory_is_all_that_the_state_holds",
    Sociable: "each_image_is_scored_by_itself",
    NoSmall: "uneven_and_small_sessions_are_learned",
}


@pytest.mark.promise
@pytest.mark.parametrize("breaker", BREAKERS, ids=lambda breaker: breaker.__name__)
def test_a_method_that_breaks_the_contract_is_caught(breaker):
    choice = Choice("mine", Entry("mine", "mine", "", breaker, None, ()), None)
    found = {words for words, wrong in conformance.run(choice) if wrong is not None}
    assert BREAKERS[breaker].replace("_", " ") in found


@pytest.mark.parametrize(
    ("breaker", "declared", "caught"),
    [
        (OfBase, "exemplars: 4 per novel class", True),
        (OfBase, "exemplars: 24 base images", False),
        (OfShots, "exemplars: 24 base images", True),
        (OfShots, "exemplars: all shots", False),
        (OfBase, "exemplars: 24 in all", False),
        (OfShots, "exemplars", False),
    ],
)
def test_exemplars_of_one_kind_do_not_allow_those_of_the_other(breaker, declared, caught):
    course = Course(Choice("mine", Entry("mine", "mine", "", breaker, None, (declared,)), None))
    check = conformance.it_keeps_no_image_that_it_does_not_declare
    expected = pytest.raises(conformance.Broken, match=r"some is larger with more .*: declare exemplars")
    with expected if caught else nullcontext():
        check(course)


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("concm", (NAMES, VIEWS, "exemplars: 5 per novel class")),
        ("concm:replay=0", (NAMES, VIEWS)),
        ("equal:ncm", (VIEWS, "exemplars: all shots, for the operating point")),
    ],
)
def test_base_images_held_out_for_the_operating_point_count_as_exemplars(words, others):
    check, choice = conformance.it_keeps_no_image_that_it_does_not_declare, choose(words)
    assert "base images held out" in choice.needs[-1]
    check(Course(choice))
    silent = Choice("mine", Entry("mine", "mine", "", choice.build, None, others), None)
    with pytest.raises(conformance.Broken, match=r"held is larger with more (base )?images"):
        check(Course(silent))


def test_an_engine_with_a_constant_of_one_s_own_holds_out_no_image_by_itself():
    choice = choose("concm:novel_bias=0.1,replay=0")
    assert choice.needs[-1] == "exemplars: base images that a bank holds out"
    assert len(Course(choice).method.state_dict()["memory.held"]) == 0


def test_a_state_with_a_bound_keeps_no_images():
    course = Course(Choice("mine", Entry("mine", "mine", "", Directions, None, ()), None))
    conformance.it_keeps_no_image_that_it_does_not_declare(course)


def test_buffers_of_networks_count_as_memory_and_statistics_of_norms_do_not():
    method = (course := Course(Choice("mine", Entry("mine", "mine", "", Normed, None, ()), None))).method
    conformance.memory_is_all_that_the_state_holds(course)
    assert method.memory_bytes == method.prototypes.nbytes + 2 * 4 * method.dimension


def test_a_network_of_pictures_that_is_not_counted_is_caught():
    course = Course(Choice("mine", Entry("mine", "mine", "", Twofold, None, (PICTURES,)), None))
    with pytest.raises(conformance.Broken, match=r"count all of .*second"):
        conformance.memory_is_all_that_the_state_holds(course)


def test_a_method_with_nothing_wrong_has_no_complaint():
    choice = Choice("mine", Entry("mine", "mine", "", NCM, None, ()), None)
    assert [wrong for _, wrong in conformance.run(choice)] == [None] * len(CHECKS)


def test_class_means_are_those_of_each_class():
    _, session = World.of(((2, 3),)).sessions
    expected = [session.features[:2].mean(0), session.features[2:].mean(0)]
    torch.testing.assert_close(session.class_means(), torch.stack(expected))


def test_anybody_s_method_is_checked_by_its_import_path(capsys):
    assert call("conformance", f"{__name__}:Hoarder") == 1
    out, err = capsys.readouterr()
    assert "FAIL  it keeps no image that it does not declare" in out
    assert sentence(err) == f"{__name__}:Hoarder breaks the contract: 1 checks failed"
    assert call("conformance", "ncm") == 0
    assert "ncm keeps the contract" in capsys.readouterr().out


@pytest.mark.parametrize("reference", ["nowhere.at:all", f"{__name__}:Nobody", "nmc"])
def test_what_cannot_be_found_is_said_so(reference, capsys):
    assert call("conformance", reference) == 2
    assert "cannot import" in (said := sentence(capsys.readouterr().err)) or "did you mean" in said


def test_another_package_s_methods_register_through_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "lazy_shop.py").write_text(
        "from concm.methods import method\nfrom concm.methods.ncm import NCM\n\n\n"
        '@method("lazy", title="as it is", paper="none")\nclass Lazy(NCM):\n    pass\n'
    )
    about = tmp_path / "lazy_shop-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lazy-shop\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[concm.methods]\nlazy = lazy_shop\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("concm.methods.registry._registered", dict(_registered))
    entries.cache_clear()
    try:
        assert choose("lazy").entry.title == "as it is"
    finally:
        entries.cache_clear()
