"""One HTML page that tells a story of photos and answers: a single file to open, mail or keep, with nothing to load."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from PIL import Image

from concm.classifier.photos import UNKNOWN
from concm.data.images import decode


@dataclass(frozen=True)
class Shown:
    """A photo (JPEG) and what was said about it; `said` is empty for a photo that was only taught.

    `right` is the caller's to say, for only the caller knows which classes were taught: UNKNOWN may be right.
    """

    photo: bytes
    truth: str | None = None
    said: str = ""
    score: float | None = None
    others: tuple[tuple[str, float], ...] = ()
    right: bool | None = None
    file: str = ""


@dataclass(frozen=True)
class Chapter:
    """A step of the story: paragraphs (an empty line between them), a table (its head first), photos, then figures
    (PNG). One without a title goes on with the step before it.
    """

    title: str
    text: str = ""
    shown: tuple[Shown, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    figures: tuple[bytes, ...] = ()


def thumbnail(picture: bytes, side: int = 224) -> bytes:
    """The central square of any readable picture as a small JPEG, sharp enough for a card on a fine screen."""
    file = io.BytesIO()
    Image.fromarray(decode(picture, side)).save(file, "JPEG", quality=80, optimize=True)
    return file.getvalue()


def render(title: str, lead: str, chapters: Sequence[Chapter]) -> str:
    """The page as text, to be written as UTF-8; whatever is given is shown as text and never becomes markup."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{_paragraphs(lead)}
</header>
<main>
{"".join(map(_chapter, chapters))}</main>
</body>
</html>
"""


def _chapter(chapter: Chapter) -> str:
    grids = ""
    for only_taught, some in groupby(chapter.shown, lambda item: not item.said):
        if only_taught:
            strips = "".join(_strip(name, list(own)) for name, own in groupby(some, lambda item: item.truth))
            grids += f'<div class="grid strips">\n{strips}</div>\n'
        else:
            grids += f'<div class="grid">\n{"".join(map(_card, some))}</div>\n'
    heading = f"<h2>{escape(chapter.title)}</h2>\n" if chapter.title else ""
    drawn = "".join(
        f'<img class="figure" src="data:image/png;base64,{b64encode(data).decode()}" alt="{escape(chapter.title)}">\n'
        for data in chapter.figures
    )
    return f"<section>\n{heading}{_paragraphs(chapter.text)}\n{_table(chapter.table)}{grids}{drawn}</section>\n"


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def _table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    kinds = [_kind([row[at] for row in rows[1:]]) for at in range(len(rows[0]))]
    head = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(rows[0], kinds, strict=True))
    body = ""
    for row in rows[1:]:
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row[1:], kinds[1:], strict=True))
        body += f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>\n'
    # Reachable by keyboard, for on a phone it may have to be scrolled.
    return (
        '<div class="table" role="region" aria-label="table" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _kind(column: Sequence[str]) -> str:
    """What marks a column of words, which begin at one place; figures end there."""
    return ' class="words"' if 2 * sum(cell[:1].isalpha() for cell in column) >= max(1, len(column)) else ""


def _strip(name: str | None, taught: Sequence[Shown]) -> str:
    """Photos that were taught one after the other under one name."""
    photos = "".join(_image(item.photo, f"taught photo of {name}" if name else "taught photo") for item in taught)
    label = f"<b>{escape(name)}</b> " if name else ""
    verdict = '<span class="verdict"><span aria-hidden="true">+</span> taught</span>'
    return f'<figure class="taught"><div>{photos}</div><figcaption>{label}{verdict}</figcaption></figure>\n'


def _card(item: Shown) -> str:
    kind, mark, word = _verdict(item)
    of = f"photo of {item.truth}" if item.truth else "photo"
    other = item.truth and item.truth != item.said
    truth = f'<p class="truth">really <b>{escape(item.truth or "")}</b></p>' if other else ""
    answers = "".join(_answer(name, score) for name, score in ((item.said, item.score), *item.others))
    file = f'<p class="truth">{escape(item.file)}</p>' if item.file else ""
    return (
        f'<figure class="{kind}">{_image(item.photo, f"{of}, called {item.said}: {word}")}<figcaption>'
        f'<p class="verdict"><span aria-hidden="true">{mark}</span> {word}</p>{truth}<ol>{answers}</ol>{file}'
        "</figcaption></figure>\n"
    )


def _image(photo: bytes, alt: str) -> str:
    return f'<img src="data:image/jpeg;base64,{b64encode(photo).decode()}" alt="{escape(alt)}">'


def _verdict(item: Shown) -> tuple[str, str, str]:
    """Style, mark and word of a card: nobody has to tell colours apart."""
    if item.said == UNKNOWN:
        return "unknown", "?", {True: "rightly unknown", False: "wrongly unknown", None: "not known"}[item.right]
    if item.right is None:
        return "open", "·", "not judged"
    return ("right", "✓", "right") if item.right else ("wrong", "✗", "wrong")


def _answer(name: str, score: float | None) -> str:
    number = ""
    if score is not None:
        bar = f'<i aria-hidden="true"><i style="width:{100 * min(max(score, 0), 1):.0f}%"></i></i>'
        number = f" <span>{score:.2f}</span>{bar}"
    return f"<li><span>{escape(name)}</span>{number}</li>"


_STYLE = """
:root { --page: #f6f6f3; --card: #fff; --text: #1d1d1b; --soft: #5f5f59; --line: #deded6;
  --right: #17692f; --wrong: #ab1f17; --unknown: #7a5200; --open: #3f4f6b }
@media (prefers-color-scheme: dark) { :root { --page: #161614; --card: #232320; --text: #ecece6; --soft: #a9a9a0;
  --line: #3b3b36; --right: #7ccf91; --wrong: #ff9a8f; --unknown: #f0c365; --open: #a9bcdd } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 68rem; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  overflow-wrap: anywhere; -webkit-text-size-adjust: 100% }
h1 { font-size: clamp(1.6rem, 5vw, 2.3rem); line-height: 1.2; margin: 0 0 .6rem; text-wrap: balance }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.8rem 0 .4rem; text-wrap: balance }
p { margin: 0 0 .8rem; max-width: 44rem; white-space: pre-line }
header p { font-size: 1.1rem; color: var(--soft) }
.grid { display: grid; gap: .8rem; margin-top: 1.1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(11rem, 50% - .4rem), 1fr)) }
.grid.strips { grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)) }
figure { --tint: var(--open); margin: 0; overflow: hidden; background: var(--card); border: 1px solid var(--line);
  border-top: .3rem solid var(--tint); border-radius: .6rem; font-size: .88rem; line-height: 1.35 }
figure.right { --tint: var(--right) }
figure.wrong { --tint: var(--wrong) }
figure.unknown { --tint: var(--unknown); border-top-style: dashed }
figure.taught { border-top: 1px solid var(--line) }
.taught div { display: grid; grid-template-columns: repeat(5, 1fr); gap: 1px }
.taught figcaption { display: flex; justify-content: space-between; gap: .8rem; font-size: .95rem }
figure img { display: block; width: 100%; aspect-ratio: 1; object-fit: cover; background: var(--line) }
figcaption { padding: .55rem .65rem .7rem }
figcaption p { margin: 0 }
.verdict { color: var(--tint); font-weight: 650 }
span.verdict { font-size: .85rem; font-weight: 500; white-space: nowrap }
.truth { color: var(--soft) }
.truth b { color: var(--text); font-weight: 600 }
ol { list-style: none; margin: .35rem 0 0; padding: 0 }
ol li { display: grid; grid-template-columns: 1fr auto; column-gap: .5rem; align-items: end; margin-top: .35rem;
  font-size: .8rem; color: var(--soft) }
ol li:first-child { font-size: .92rem; font-weight: 600; color: var(--text) }
ol span + span { font-size: .8rem; font-variant-numeric: tabular-nums; font-weight: 400 }
ol li > i { grid-column: 1 / -1; height: 2px; margin-top: .15rem; background: var(--line); border-radius: 2px }
ol li:first-child > i { height: 4px }
ol i i { display: block; height: 100%; background: var(--soft); border-radius: 2px }
ol li:first-child i i { background: var(--tint) }
.table { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; overflow-wrap: normal }
th, td { padding: .4rem .9rem .4rem 0; text-align: right; border-bottom: 1px solid var(--line) }
th:first-child, .words { text-align: left }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom }
td { white-space: nowrap }
td.words { white-space: normal }
img.figure { display: block; max-width: 100%; height: auto; margin: 1rem 0; background: #fff; border-radius: .4rem }
tbody th { font-weight: 500; min-width: 7rem }
@media print { figure, tr { break-inside: avoid } }
"""
