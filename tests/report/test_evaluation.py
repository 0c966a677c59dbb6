"""The page of an evaluation: what it shows, and that it loads and runs nothing."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from concm.classifier.evaluation import Evaluation, Wrong
from concm.report import evaluation as pages
from concm.report.evaluation import evaluation_page
from tests.support.html import Page
from tests.support.photographs import picture


def measured(wrong: list[Wrong], by_class: dict[str, tuple[int, int]]) -> Evaluation:
    pairs: dict[tuple[str, str], int] = {}
    for one in wrong:
        pairs[one.truth, one.guess] = pairs.get((one.truth, one.guess), 0) + 1
    return Evaluation(
        version=3,
        photos=sum(count for _, count in by_class.values()),
        classes=len(by_class),
        acc=90.0,
        acc_base=None,
        acc_novel=None,
        hm=None,
        ece=2.5,
        unknown_rate=5.0,
        refused=4.0,
        strangers=0,
        false_accept=None,
        auroc=None,
        by_class=by_class,
        confused=[(one, other, count) for (one, other), count in pairs.items()],
        wrong=wrong,
    )


@pytest.fixture
def result() -> Evaluation:
    wrong = [Wrong("a/1.png", "cat", "dog", 0.8, False), Wrong("a/2.png", "cat", "<b>owl</b>", 0.6, True)]
    return measured(wrong, {"cat": (3, 5), "dog": (4, 4), "<b>owl</b>": (1, 1)})


def test_the_page_has_figures_classes_the_matrix_and_the_wrong_photos(result):
    page = Page(evaluation_page("zoo", result, {name: picture("cat", 1) for name in ("a/1.png", "a/2.png")}))
    assert page.text["h1"] == ["zoo, measured"]
    assert page.text["h2"] == ["Figures", "Every class", "Confusion matrix", "Wrong photos"]
    rows = [row.split() for row in page.text["tr"]]
    assert ["accuracy90.00", "%"] in rows
    assert ["cat60", "%3", "of", "5"] in rows
    assert rows[-3:] == [["1.", "cat311"], ["2.", "dog4"], ["3.", "<b>owl</b>1"]]
    assert len(page.cards) == 2
    assert "wrong" in page.cards[1]
    assert "1.png" in page.cards[1]


def test_it_loads_and_runs_nothing_and_photos_are_made_anew(result):
    file = io.BytesIO()
    image = Image.fromarray(picture("cat", 1))
    exif = image.getexif()
    exif[0x010E] = "where I live"
    image.save(file, "JPEG", exif=exif)
    text = evaluation_page("<script>zoo", result, {"a/1.png": file.getvalue()})
    page = Page(text)
    assert {tag for tag, _ in page.elements} & {"script", "link", "iframe"} == set()
    [photo] = page.every("img")
    content = base64.b64decode(photo["src"].removeprefix("data:image/jpeg;base64,"))
    assert b"where I live" not in content
    assert Image.open(io.BytesIO(content)).size == (128, 128)
    assert "default-src 'none'" in text


def test_a_photo_that_is_gone_is_left_out_and_a_page_without_mistakes_has_no_matrix(result):
    assert Page(evaluation_page("zoo", result, {"a/1.png": b"no photo"})).cards == []
    page = Page(evaluation_page("zoo", measured([], {"cat": (5, 5)}), {}))
    assert page.text["h2"] == ["Figures", "Every class"]


def test_the_matrix_has_the_most_confused_classes_only(monkeypatch):
    monkeypatch.setattr(pages, "MOST_CLASSES", 2)
    wrong = [Wrong("x", "cat", "dog", 0.5, False)] * 5 + [Wrong("y", "owl", "hen", 0.5, False)]
    page = Page(evaluation_page("zoo", measured(wrong, dict.fromkeys(("cat", "dog", "owl", "hen"), (1, 7))), {}))
    assert "Of the 4 classes that are confused, the 2 most often." in " ".join(page.text["p"])
    assert page.text["tr"][-2:] == ["1. cat15", "2. dog1"]
