"""A page of HTML taken apart, for statements about what people see."""

from __future__ import annotations

from html.parser import HTMLParser

EMPTY = {"meta", "img"}


class Page(HTMLParser):
    """A page taken apart: elements in order, and the text in them by tag; an ill-formed one is refused."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("p", "li"):
            self.handle_data(" ")

    def handle_data(self, data):
        for tag in set(self.open):
            self.text[tag][-1] += data

    def every(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def cards(self) -> list[str]:
        return [" ".join(text.split()) for text in self.text.get("figcaption", [])]
