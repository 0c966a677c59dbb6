"""The HTML page: whole in one file, well-formed, legible without colours, and safe whatever the names are."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from concm.data.images import BrokenPicture
from concm.report.page import UNKNOWN, Chapter, Shown, render, thumbnail
from tests.support.data import noise
from tests.support.html import Page

HOSTILE = "<script src=\"http://evil.example/x.js\">alert('1')</script>&amp; \" onload='x' ✓ пирог"
LOADING = {"src", "href", "srcset", "action", "data", "poster", "background", "formaction"}


def page_of(*shown: Shown, table: tuple[tuple[str, ...], ...] = ()) -> Page:
    return Page(render("Fruit", "A story.", [Chapter("One", "A text.", shown, table)]))


def test_a_story_is_told_in_order():
    page = Page(render("Fruit", "First.\n\nSecond.", [Chapter("One", "Third."), Chapter("Two", "Fourth.")]))
    assert page.text["title"] == page.text["h1"] == ["Fruit"]
    assert page.text["h2"] == ["One", "Two"]
    assert page.text["p"] == ["First.", "Second.", "Third.", "Fourth."]


def test_a_page_without_chapters_is_a_page():
    assert Page(render("Fruit", "", [])).text["h1"] == ["Fruit"]


def test_every_photo_is_in_the_page_itself_and_described():
    asked = Shown(b"\xff\xd8two", "pear", "apple", 0.5, right=False)
    images = page_of(Shown(b"\xff\xd8one", "pear"), asked, Shown(b"\xff\xd8three", None, "apple")).every("img")
    sources = [image["src"].partition(",") for image in images]
    assert [base64.b64decode(data) for _, _, data in sources] == [b"\xff\xd8one", b"\xff\xd8two", b"\xff\xd8three"]
    assert {kind for kind, _, _ in sources} == {"data:image/jpeg;base64"}
    assert [image["alt"] for image in images] == [
        "taught photo of pear",
        "photo of pear, called apple: wrong",
        "photo, called apple: not judged",
    ]


@pytest.mark.promise
def test_nothing_outside_the_page_is_asked_for():
    shown = (Shown(b"1", "pear"), Shown(b"2", "pear", "apple", 0.5, (("fig", 0.1),), False))
    page = render("Fruit", "A story.", [Chapter("One", "A text.", shown, (("a", "b"), ("c", "1")))])
    for _, attributes in Page(page).elements:
        assert all((attributes[name] or "").startswith("data:image/") for name in LOADING & set(attributes))
    assert not [words for words in ("//", "url(", "@import", "<script", "<link") if words in page]
    policy = [meta["content"] for meta in Page(page).every("meta") if "http-equiv" in meta]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


@pytest.mark.parametrize(
    ("said", "right", "verdict"),
    [
        ("pear", True, "✓ right pear"),
        ("apple", False, "✗ wrong really pear apple"),
        ("apple", None, "· not judged really pear apple"),
        (UNKNOWN, True, "? rightly unknown really pear unknown"),
        (UNKNOWN, False, "? wrongly unknown really pear unknown"),
        (UNKNOWN, None, "? not known really pear unknown"),
    ],
)
def test_a_verdict_is_a_mark_and_a_word(said, right, verdict):
    assert page_of(Shown(b"", "pear", said, right=right)).cards == [verdict]


def test_the_scores_shown_are_those_given():
    page = page_of(Shown(b"", "pear", "pear", 0.874, (("fig", 0.12), ("plum", 0.006)), True))
    assert page.cards == ["✓ right pear 0.87 fig 0.12 plum 0.01"]
    assert [bar["style"] for bar in page.every("i") if "style" in bar] == ["width:87%", "width:12%", "width:1%"]


@pytest.mark.parametrize(("score", "width"), [(-0.25, 0), (0, 0), (1, 100), (7.5, 100)])
def test_a_score_beyond_the_bar_is_still_told(score, width):
    page = page_of(Shown(b"", "pear", "pear", score))
    assert f"{score:.2f}" in page.cards[0]
    assert [bar["style"] for bar in page.every("i") if "style" in bar] == [f"width:{width}%"]


def test_no_score_is_no_number_and_no_bar():
    page = page_of(Shown(b"", "pear", "pear"))
    assert page.every("i") == []
    assert not any(letter.isdigit() for letter in page.cards[0])


def test_photos_taught_in_a_row_under_one_name_stand_together():
    page = page_of(*[Shown(b"", name) for name in ("pear", "pear", "fig", "pear")], Shown(b"", None))
    assert page.cards == ["pear + taught", "fig + taught", "pear + taught", "+ taught"]
    assert len(page.every("img")) == 5


def test_taught_and_asked_photos_keep_their_order():
    page = page_of(Shown(b"", "pear"), Shown(b"", "fig", "fig", right=True), Shown(b"", "plum"))
    assert page.cards == ["pear + taught", "✓ right fig", "plum + taught"]


def test_a_table_has_its_head_first():
    page = page_of(table=(("after", "right"), ("pears", "91.8 %"), ("all", "88.2 %")))
    assert page.text["th"] == ["after", "right", "pears", "all"]
    assert [cell["scope"] for cell in page.every("th")] == ["col", "col", "row", "row"]
    assert page.text["td"] == ["91.8 %", "88.2 %"]


def test_columns_of_words_are_told_from_columns_of_figures():
    page = page_of(table=(("what", "scenario", "AHM"), ("main", "cub200", "62.3"), ("other", "–", "–")))
    assert [cell.get("class") for cell in page.every("td")] == ["words", None, "words", None]


@pytest.mark.promise
def test_hostile_words_are_shown_and_not_obeyed():
    shown = (Shown(b"", HOSTILE), Shown(b"", HOSTILE, HOSTILE + "!", 0.5, ((HOSTILE, 0.1),), False))
    page = Page(render(HOSTILE, HOSTILE, [Chapter(HOSTILE, HOSTILE, shown, ((HOSTILE, HOSTILE), (HOSTILE, HOSTILE)))]))
    assert page.text["h1"] == page.text["h2"] == page.text["td"] == page.text["title"] == [HOSTILE]
    assert [image["alt"] for image in page.every("img")] == [
        f"taught photo of {HOSTILE}",
        f"photo of {HOSTILE}, called {HOSTILE}!: wrong",
    ]
    assert "script" not in page.text
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1))
def test_any_name_is_shown_as_it_is_given(name):
    page = page_of(Shown(b"", name), table=((name,),))
    assert page.text["th"] == page.text["b"] == [name]


@pytest.mark.parametrize("form", ["PNG", "WEBP", "JPEG"])
def test_a_thumbnail_is_a_small_square_jpeg_of_the_middle(form):
    pixels = np.full((40, 120, 3), 255, np.uint8)
    pixels[:, 40:80] = (200, 30, 30)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    with Image.open(io.BytesIO(thumbnail(file.getvalue(), 16))) as small:
        assert (small.format, small.size, small.mode) == ("JPEG", (16, 16), "RGB")
        np.testing.assert_allclose(np.asarray(small)[4:12, 4:12].mean((0, 1)), (200, 30, 30), atol=8)


def test_a_thumbnail_is_upright():
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = 255
    turned, exif = Image.fromarray(np.rot90(pixels)), Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    turned.save(file, "PNG", exif=exif)
    with Image.open(io.BytesIO(thumbnail(file.getvalue(), 16))) as small:
        assert np.asarray(small)[:6].mean() > 240


def test_a_thumbnail_of_a_photo_takes_little_room():
    file = io.BytesIO()
    Image.fromarray(noise(0, 900, 600)).save(file, "JPEG")
    assert len(thumbnail(file.getvalue())) < 40_000


def test_what_is_no_picture_gets_no_thumbnail():
    with pytest.raises(BrokenPicture, match="cannot be read as a picture"):
        thumbnail(b"hello")
