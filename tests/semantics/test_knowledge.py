"""Attributes and word vectors that a user gives reach the bench, and a result says that it had them."""

from __future__ import annotations

import json

import pytest

from concm.errors import Misuse
from concm.semantics.knowledge import Knowledge
from tests.support.data import make_bank
from tests.support.tiny import call, sentence


def glove(path, seed: int = 0):
    """Vectors of a few words, three dimensions each."""
    path.write_text("".join(f"{word} {at + seed} {1 - at} 0.5\n" for at, word in enumerate(("dog", "cat", "bird"))))
    return path


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(Misuse, match="no folder of attributes"):
        Knowledge(attributes=tmp_path / "nowhere")
    with pytest.raises(Misuse, match="no word vectors"):
        Knowledge(word_vectors=tmp_path)


def test_given_word_vectors_are_those_that_names_are_read_with(tmp_path):
    known = Knowledge(word_vectors=glove(tmp_path / "words.txt"))
    meanings = known.semantics("folder", ("dog", "cat"))
    assert meanings.embedded(["bird"]).shape == (1, 3)
    assert known.semantics("folder", ("dog", "cat")) is meanings


def test_other_knowledge_is_another_run(tmp_path):
    one, other = Knowledge(word_vectors=glove(tmp_path / "a")), Knowledge(word_vectors=glove(tmp_path / "b", 1))
    assert one.recorded.keys() == {"word_vectors"}
    assert one.recorded != other.recorded


def test_the_bench_takes_it_and_the_result_records_it(tmp_path, capsys):
    bank, words = tmp_path / "bank", glove(tmp_path / "words.txt")
    make_bank().save(bank, "float32")
    given = ("bench", "--bank", bank, "--out", tmp_path / "out", "--jobs", 1, "--draws", 1, "--word-vectors", words)
    assert call(*given, "--method", "concm:base_steps=1,steps=1", "--method", "concm:published,short") == 0
    found = [json.loads(path.read_text())["heading"] for path in (tmp_path / "out").glob("*.json")]
    assert {heading["method"] for heading in found} >= {"concm", "concm:published", "ncm"}
    assert all(heading["knowledge"] == Knowledge(word_vectors=words).recorded for heading in found)
    assert call("bench", "--attributes", tmp_path / "nowhere") == 2
    assert "--attributes takes that of CUB-200-2011" in sentence(capsys.readouterr().err)
