"""From class names to synsets, attributes and vectors."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch.nn.functional import cosine_similarity

from concm.data import scenarios
from concm.errors import ConcmError, Misuse
from concm.semantics import cub
from concm.semantics.attributes import attributes
from concm.semantics.overrides import bundled
from concm.semantics.semantics import Semantics, report
from concm.semantics.senses import Company, resolve
from concm.semantics.vectors import TextFile, embed, glove
from concm.semantics.wordnet import identifier, nouns

CIFAR = scenarios.load_scenario("cifar100").names


def sense(name, *others):
    """The label of what `name` means among the other classes."""
    return report([name, *others])[0].label


def labels(synset):
    return {nouns().label(part) for part in attributes(synset)}


def test_the_table_holds_all_nouns_of_wordnet_3():
    assert len(nouns()) == 82_115
    assert nouns().lemmas(1740) == ("entity",)
    assert nouns().hypernyms(1740) == []


def test_an_imagenet_id_is_a_noun():
    assert nouns().lemmas(1532829) == ("house_finch", "linnet", "Carpodacus_mexicanus")
    assert [report([name])[0].synset for name in ("n01532829", "house finch")] == ["n01532829"] * 2
    assert identifier(1740) == "n00001740"


def test_every_imagenet_id_of_the_scenarios_is_a_noun():
    assert all(int(synset[1:]) in nouns() for synset in scenarios.load_scenario("imagenet1k").keys)
    assert 1532828 not in nouns()
    assert 99999999 not in nouns()


def test_instances_have_hypernyms_too():
    tower = nouns().senses("Eiffel Tower")[0]
    assert "tower" in {nouns().label(up) for up in nouns().ancestors(tower)}


def test_senses_come_in_wordnets_order_and_labels_tell_them_apart():
    assert [nouns().label(synset) for synset in nouns().senses("crane")][-2:] == ["crane#4", "crane#5"]
    assert nouns().numbered("crane", 5) == nouns().senses("crane")[4]
    assert nouns().numbered("crane", 6) is None


@pytest.mark.promise
def test_a_finch_inherits_the_parts_of_birds():
    finch = nouns().senses("finch")[0]
    assert nouns().parts(finch) == []
    assert {"beak#2", "wing", "feather"} <= labels(finch)
    given_by = {nouns().label(part): nouns().label(above) for part, above in attributes(finch).items()}
    assert given_by["feather"] == "bird"
    assert given_by["tail"] == "vertebrate"


def test_very_general_parts_can_be_left_out():
    finch = nouns().senses("finch")[0]
    special = {nouns().label(part) for part in attributes(finch, least_information=0.15)}
    assert labels(finch) - special == {"cell#2", "body part", "part#2", "section#4"}
    pools = [Semantics.of_names(["finch", "car"], least_information=least) for least in (0.0, 0.15)]
    assert set(pools[0].attributes) - set(pools[1].attributes) == {"cell#2", "body part", "part#2", "section#4"}
    assert not {"part#2", "cell#2"} & set(pools[1].meanings(["okapi"])[0].attributes)


@pytest.mark.parametrize(
    "names",
    [
        ["sea lion", "sea_lion", "Sea-Lion", "SEA LIONS", "sealion", " sea lion "],
        ["mouse", "Mouse", "mice"],
        ["butterfly", "butterflies", "Butterfly"],
        ["fox", "foxes"],
        ["wolf", "wolves"],
        ["snowman", "snowmen", "Snowman"],
        ["black-footed albatross", "001.Black_footed_Albatross", "Black footed albatrosses"],
    ],
)
def test_spellings_and_plurals_of_a_name_agree(names):
    semantics = Semantics.of_names(["cat", "horse", "snake"])
    found = semantics.meanings(names)
    assert len({meaning.synset for meaning in found}) == 1
    assert found[0].synset
    vectors, rows = semantics.classes(names)
    assert (rows == rows[0]).all()
    assert rows.any()
    assert vectors.any(dim=1).all()


def test_a_word_that_ends_in_s_is_no_plural():
    assert [sense(name) for name in ("bus", "grass", "walrus")] == ["bus", "grass", "walrus"]


@pytest.mark.parametrize(
    ("name", "label", "how"),
    [
        ("aquarium fish", "fish", "head word: fish"),
        ("maple tree", "maple#2", "first words: maple"),
        ("Laysan Albatross", "albatross#2", "head word: albatross"),
        ("okapi zzyzx", "okapi", "first words: okapi"),
        ("Frigatebird", "frigate bird", "name"),
    ],
)
def test_a_name_that_is_no_lemma_falls_back_to_its_words_and_says_so(name, label, how):
    meaning = report([name, "bird", "dog", "oak"])[0]
    assert (meaning.label, meaning.how) == (label, how)
    assert any("is read as" in remark for remark in meaning.remarks) == (how != "name")


@pytest.mark.parametrize("name", ["Zorblax", "class 17", "n99999999", "", "_", "  ", "犬", "a/b.c", "#2"])
def test_a_name_that_nobody_knows_has_no_attributes_and_says_so(name):
    semantics = Semantics.of_names(["dog", name])
    vectors, rows = semantics.classes(["dog", name])
    if not semantics.meanings([name])[0].synset:
        assert not rows[1].any()
        assert any("has no attributes" in remark for remark in semantics.meanings([name])[0].remarks)
    assert rows[0].any()
    assert torch.isfinite(vectors).all()
    assert semantics.meanings(["dog"])[0].remarks == ()


def test_words_without_a_vector_are_zero_and_reported():
    semantics = Semantics.of_names(["dog", "Zorblax", "striped Zorblax"])
    vectors, _ = semantics.classes(["dog", "Zorblax", "striped Zorblax"])
    assert vectors.any(dim=1).tolist() == [True, False, True]
    assert [meaning.unknown_words for meaning in semantics.meanings(["dog", "Zorblax"])] == [(), ("zorblax",)]
    assert "zorblax" in semantics.meanings(["Zorblax"])[0].remarks[-1]
    assert Semantics.of_names(["beetle", "dog"]).without_vector == ("apodeme", "arthromere", "mentum#3")


def test_only_unknown_names_leave_an_empty_pool():
    semantics = Semantics.of_names(["Zorblax", "Quux"])
    vectors, rows = semantics.classes(["Zorblax", "dog"])
    assert semantics.attributes == ()
    assert semantics.vectors.shape == (0, 50)
    assert vectors.shape == (2, 50)
    assert rows.shape == (2, 0)
    assert [part.shape for part in semantics.classes([])] == [(0, 50), (0, 0)]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["crane", "robin", "heron", "eagle"], "crane#5"),
        (["crane", "bulldozer", "excavator", "forklift"], "crane#4"),
        (["mouse", "cat", "horse"], "mouse"),
        (["mouse", "keyboard", "monitor", "printer"], "mouse#4"),
        (["bass", "trout", "salmon", "cod"], "sea bass"),
        (["bass", "violin", "guitar", "trumpet"], "bass#7"),
        (["seal", "walrus", "dolphin", "whale"], "seal#9"),
        (["orange", "apple", "banana"], "orange"),
        (["dog", "cat"], "dog"),
        (["dog"], "dog"),
    ],
    ids=" ".join,
)
def test_an_ambiguous_name_is_read_in_the_company_of_the_others(names, label):
    assert sense(*names) == label
    assert {meaning.name: meaning.label for meaning in report(names[::-1])}[names[0]] == label


def test_individuals_are_no_classes_where_there_is_a_choice():
    assert sense("crane", "table") != "Crane"
    assert sense("Eiffel Tower") == "Eiffel Tower"


def test_cifar_names_are_read_rightly_but_for_those_set_by_hand():
    together = resolve(CIFAR)
    base = resolve(CIFAR[:60])
    in_sessions = base + tuple(resolve([name], known=Company(base))[0] for name in CIFAR[60:])
    by_hand = {name: report([name], overrides=bundled("cifar100"))[0].synset for name in bundled("cifar100")}
    for found in (together, in_sessions):
        wrong = [one.name for one in found if by_hand.get(one.name, identifier(one.synset)) != identifier(one.synset)]
        assert len(wrong) <= 8, wrong
    animals = [
        "beaver",
        "otter",
        "seal",
        "shark",
        "ray",
        "whale",
        "trout",
        "turtle",
        "skunk",
        "leopard",
        "tiger",
        "worm",
    ]
    semantics = Semantics.of_names(CIFAR[:60], overrides=bundled("cifar100"))
    assert all("animal" in meaning.kind_of for meaning in semantics.meanings(animals))


def test_imagenet_names_mostly_mean_what_their_ids_say():
    scenario = scenarios.load_scenario("imagenet1k")
    found = resolve(scenario.names)
    assert sum(identifier(one.synset or 0) == synset for one, synset in zip(found, scenario.keys, strict=True)) >= 900


def test_cifar_classes_have_attributes_but_for_five():
    semantics = Semantics.of_names(CIFAR[:60], overrides=bundled("cifar100"))
    _, rows = semantics.classes(CIFAR)
    without = [name for name, row in zip(CIFAR, rows, strict=True) if not row.any()]
    assert without == ["cloud", "forest", "plain", "sea", "sweet pepper"]
    assert len(semantics.attributes) == 198
    assert rows[:60].any(dim=0).all(), "every attribute of the pool belongs to a base class"


def test_mini_imagenet_by_ids_has_the_207_attributes_of_the_paper():
    keys = scenarios.load_scenario("mini_imagenet").keys
    semantics = Semantics.of_names(keys[:60])
    _, rows = semantics.classes(keys)
    assert len(semantics.attributes) == 207
    assert int(rows.sum()) == 934
    assert int((~rows[:60].any(dim=1)).sum()) == 0
    assert int((~rows[60:].any(dim=1)).sum()) == 6


def test_the_pool_does_not_depend_on_the_order_of_the_classes():
    one, other = Semantics.of_names(CIFAR[:20]), Semantics.of_names(CIFAR[:20][::-1])
    assert one.attributes == other.attributes
    torch.testing.assert_close(one.vectors, other.vectors)
    assert len(set(one.attributes)) == len(one.attributes)


def test_new_classes_change_neither_the_pool_nor_what_others_got():
    base, new = CIFAR[:60], CIFAR[60:]
    semantics = Semantics.of_names(base)
    before = semantics.classes(base)
    at_once = semantics.classes(new)
    one_by_one = [semantics.classes([name]) for name in reversed(new)][::-1]
    for which in (0, 1):
        torch.testing.assert_close(at_once[which], torch.cat([found[which] for found in one_by_one]))
        assert torch.equal(before[which], semantics.classes(base)[which])
    later = semantics.learn(new[:20]).learn(new[20:])
    assert later.attributes == semantics.attributes
    assert torch.equal(later.classes(base)[1], before[1])


def test_learnt_classes_keep_their_sense_and_are_company_for_those_to_come():
    semantics = Semantics.of_names(["oak", "rose", "tulip"])
    first = semantics.learn(["crane"])
    birds = semantics.learn(["robin", "heron", "eagle", "gull"])
    assert birds.meanings(["crane"])[0].label == "crane#5"
    assert first.meanings(["crane"]) == first.learn(["robin", "heron", "eagle", "gull"]).meanings(["crane"])
    assert semantics.senses.keys() == {"oak", "rose", "tulip"}, "learning returns another object"


def test_settled_senses_can_be_kept_and_given_again():
    semantics = Semantics.of_names(["crane", "robin", "heron", "Zorblax"]).learn(["bass"])
    again = Semantics.of_names(["crane", "robin", "heron", "Zorblax"], overrides=semantics.senses)
    assert semantics.senses["crane"] == "n02012849"
    assert semantics.senses["Zorblax"] == ""
    assert again.attributes == semantics.attributes
    assert torch.equal(again.classes(["bass", "crane"])[1], semantics.classes(["bass", "crane"])[1])


def test_semantics_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Semantics.of_names(["dog"]).attributes = ()


def test_overrides_win(tmp_path):
    file = tmp_path / "senses.toml"
    file.write_text('Crane = "crane#4"\nrobin = "n02958343"\neagle = ""\n"sea lion" = "dog"\n')
    for overrides in (file, {"crane": "crane#4", "robin": "n02958343", "eagle": "", "sea-lion": "dog"}):
        semantics = Semantics.of_names(["crane", "robin", "heron", "eagle"], overrides=overrides)
        found = semantics.meanings(["crane", "robin", "heron", "eagle", "sea lions", "sea lion"])
        assert [one.label for one in found] == ["crane#4", "car", "heron#2", "", "sea lion", "dog"]
        assert found[0].how == "set by hand"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('seal = "seal#99"', "seal has 9 senses"),
        ('seal = "seal#"', None),
        ('seal = "seal#x"', "seal#x"),
        ('seal = "zorblax#1"', "zorblax is no noun"),
        ('seal = "n99999999"', "n99999999"),
        ("seal = 9", "seal#9"),
        ("[cifar100]\nseal = 'seal#9'", "cifar100"),
        ("seal seal", "TOML"),
    ],
)
def test_a_wrong_override_is_named_with_its_file(tmp_path, text, told):
    file = tmp_path / "senses.toml"
    file.write_text(text)
    if told is None:
        assert Semantics.of_names(["seal"], overrides=file)
        return
    with pytest.raises(Misuse, match=told) as caught:
        Semantics.of_names(["seal"], overrides=file)
    assert str(file) in str(caught.value)


def test_a_missing_override_file_is_misuse(tmp_path):
    with pytest.raises(Misuse, match="absent"):
        report(["dog"], overrides=tmp_path / "absent.toml")


def test_a_cat_is_closer_to_a_dog_than_to_a_car():
    cat, dog, car = embed([["cat"], ["dog"], ["car"]], glove())[0]
    assert cosine_similarity(cat, dog, dim=0) > 0.9
    assert cosine_similarity(cat, dog, dim=0) > cosine_similarity(cat, car, dim=0) + 0.3


def test_bundled_vectors_are_close_to_the_published_floats():
    published = torch.tensor([0.45281, -0.50108, -0.53714, -0.015697, 0.22191])
    assert torch.allclose(torch.from_numpy(glove().find(["cat"])["cat"])[:5], published, atol=0.015)


def test_a_name_has_the_mean_of_its_words_and_a_group_the_mean_of_its_names():
    words = glove().find(["sea", "lion", "dog"])
    sea_lion = (words["sea"] + words["lion"]) / 2
    found, unknown = embed([["sea_lion"], ["Sea-Lion", "dog"], ["zorblax dog"], []], glove())
    expected = [sea_lion, (sea_lion + words["dog"]) / 2, words["dog"], 0 * words["dog"]]
    for row, vector in zip(found, expected, strict=True):
        assert torch.allclose(row, torch.from_numpy(vector), atol=1e-6)
    assert unknown == [(), (), ("zorblax",), ()]


def test_a_class_by_id_has_the_vector_of_its_first_name_and_an_unknown_name_that_of_its_lemmas():
    semantics = Semantics.of_names(["house finch"])
    by_name, by_id = semantics.classes(["house finch", "n01532829"])[0]
    torch.testing.assert_close(by_name, by_id)
    meaning = semantics.meanings(["Frigatebird"])[0]
    assert meaning.unknown_words == ()
    assert semantics.classes(["Frigatebird"])[0].any()


def test_a_users_glove_file_is_read_for_the_words_needed(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text(
        "the 1 2 3\ncat name@domain.com 9 9 9\ncat 0.5 -1 2e-1\nbroken line\nfeather 1 1 1\nbeak 0 2 0\n"
        "dog 1 0 0\ncat 7 7 7\nfinch 0 1 1\n",
        encoding="utf-8",
    )
    semantics = Semantics.of_names(["finch"], word_vectors=file)
    assert semantics.vectors.shape == (len(semantics.attributes), 3)
    assert semantics.vectors[semantics.attributes.index("feather")].tolist() == [1, 1, 1]
    vectors, _ = semantics.classes(["cat", "dog", "Zorblax"])
    assert torch.allclose(vectors, torch.tensor([[0.5, -1, 0.2], [1, 0, 0], [0, 0, 0]]))
    file.unlink()
    torch.testing.assert_close(semantics.classes(["dog", "cat"])[0], vectors[[1, 0]])  # what was read is remembered


def test_a_word2vec_header_is_skipped(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("2 3\ncat 1 2 3\ndog 4 5 6\n")
    assert TextFile(file).find(["cat", "dog", "cow"])["dog"].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "first line"),
        (b"<!DOCTYPE html>\n<html>\n", "first line"),
        (b"the quick brown fox\n", "first line"),
        (b"the 1 2 3\ncat 1 2\n", "line 2 has 2 numbers, not 3"),
        (b"the 1 2 3\ncat 1 2 x\n", "line 2"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00", "first line"),
    ],
)
def test_a_malformed_file_of_vectors_gets_a_sentence(tmp_path, content, told):
    file = tmp_path / "glove.txt"
    file.write_bytes(content)
    with pytest.raises(ConcmError, match=told) as caught:
        Semantics.of_names(["cat"], word_vectors=file)
    assert str(file) in str(caught.value)


def test_a_missing_file_of_vectors_gets_a_sentence(tmp_path):
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(ConcmError, match="cannot read the word vectors"):
            Semantics.of_names(["cat"], word_vectors=path)


ATTRIBUTES = ["has_bill_shape::hooked", "has_bill_shape::cone", "has_size::small", "has_size::very_large_(32_-_72_in)"]
BIRDS = ["001.Black_footed_Albatross", "002.Indigo_Bunting", "003.Gadwall"]


def cub_files(folder, *, strengths=("80 20 0 100", "10.5 60 99 1", "10 60 0 0")):
    (folder / "CUB" / "attributes").mkdir(parents=True)
    (folder / "attributes.txt").write_text("".join(f"{at} {name}\n" for at, name in enumerate(ATTRIBUTES, start=1)))
    (folder / "CUB" / "classes.txt").write_text("".join(f"{at} {name}\n" for at, name in enumerate(BIRDS, start=1)))
    file = folder / "CUB" / "attributes" / "class_attribute_labels_continuous.txt"
    file.write_text("\n".join(strengths) + "\n")
    return folder / "CUB"


def test_a_cub_class_has_the_strongest_attribute_of_each_group(tmp_path):
    semantics = Semantics.of_cub(["Black footed Albatross", "002.Indigo_Bunting"], cub_files(tmp_path))
    assert semantics.attributes == tuple(ATTRIBUTES)
    _, rows = semantics.classes([*BIRDS, "gadwall"])
    assert rows.int().tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
    assert semantics.meanings(BIRDS[:1])[0].remarks == ()


def test_the_cub_pool_is_that_of_the_base_classes(tmp_path):
    semantics = Semantics.of_cub(BIRDS[:1], cub_files(tmp_path))
    assert semantics.attributes == (ATTRIBUTES[0], ATTRIBUTES[3])
    vectors, rows = semantics.classes(["Indigo Bunting", "Painted Bunting"])
    assert not rows.any()
    assert vectors.any(dim=1).all()
    assert "not among CUB's classes" in semantics.meanings(["Painted Bunting"])[0].remarks[0]
    assert semantics.learn(["Indigo Bunting"]).attributes == semantics.attributes


def test_cub_attributes_have_the_vectors_of_their_words(tmp_path):
    semantics = Semantics.of_cub(BIRDS, cub_files(tmp_path))
    words = glove().find(["size", "small"])
    expected = torch.from_numpy((words["size"] + words["small"]) / 2)
    assert torch.allclose(semantics.vectors[2], expected, atol=1e-6)
    assert semantics.vectors.any(dim=1).all()
    assert cub.words("has_bill_shape::curved_(up_or_down)").split("_") == ["bill", "shape curved", "(up", "or", "down)"]


@pytest.mark.parametrize(
    ("strengths", "told"),
    [
        (("1 2 3 4", "1 2 3"), "line 2 has 3 values, but there are 4 attributes"),
        (("1 2 3 4",), "has 1 lines, but there are 3 classes"),
        (("1 2 3 4", "1 2 x 4", "1 2 3 4"), "no number"),
    ],
)
def test_malformed_cub_files_get_a_sentence(tmp_path, strengths, told):
    with pytest.raises(ConcmError, match=told):
        Semantics.of_cub(BIRDS, cub_files(tmp_path, strengths=strengths))


def test_misnumbered_or_missing_cub_files_get_a_sentence(tmp_path):
    folder = cub_files(tmp_path)
    (folder / "classes.txt").write_text("1 001.A\n3 003.C\n")
    with pytest.raises(ConcmError, match=r"classes\.txt, line 2"):
        Semantics.of_cub(BIRDS, folder)
    (folder / "classes.txt").unlink()
    with pytest.raises(ConcmError, match=r"no classes\.txt"):
        Semantics.of_cub(BIRDS, folder)


def test_tables_are_read_at_first_use_only():
    code = (
        "import concm.semantics.semantics, concm.semantics.wordnet as w, concm.semantics.vectors as v, sys;"
        "assert w.nouns.cache_info().currsize == v.glove.cache_info().currsize == 0;"
        "assert 'nltk' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_word_vectors_that_are_no_numbers_are_refused(tmp_path, value):
    (tmp_path / "words.txt").write_text(f"dog 0.1 0.2\ncat {value} 0.2\n")
    with pytest.raises(ConcmError, match=r"line 2 has values that are no numbers"):
        TextFile(tmp_path / "words.txt").find(["cat"])


def test_a_copy_shares_what_never_changes():
    """An engine that is copied to try something does not copy a vocabulary of many thousand words."""
    own = Semantics.of_names(["cat", "dog"])
    copy = deepcopy({"of an engine": own})["of an engine"]
    assert copy.words is own.words
    copy.learn(["horse"])
    assert own.senses.keys() == {"cat", "dog"}


def test_a_class_whose_folder_bears_an_id_has_the_sense_of_that_id():
    known = bundled("mini_imagenet")
    assert known["robin"] == "n01558993"  # the American robin, though the bird is European elsewhere
    assert known["ear"] == "n13133613"  # of maize
    semantics = Semantics.of_names(list(known)[:60], overrides=known).learn(list(known))
    assert {name: semantics.senses[name] for name in known} == known


def test_senses_by_hand_go_with_the_part_of_a_scenario_that_they_are_for():
    both = bundled("mini_to_cifar")
    assert both["television"] == bundled("cifar100")["television"]
    assert both["house finch"] == "n01532829"
    assert bundled("folder") == {}
