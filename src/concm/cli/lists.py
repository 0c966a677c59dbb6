"""What there is: scenarios, backbones, and what class names mean."""

from __future__ import annotations

from pathlib import Path

from concm.errors import Misuse


def attributes(
    *names: str,
    among: str | None = None,
    overrides: Path | None = None,
    word_vectors: Path | None = None,
) -> None:
    """Show the WordNet sense and the attributes (parts) of class names.

    Parameters
    ----------
    names
        Class names; each is read in the company of the others.
    among
        Read them as classes that come to this scenario's base classes, with its pool of attributes.
    overrides
        TOML file that settles senses by hand: a name and a synset (`n02084071`) or lemma and number (`seal#9`).
    word_vectors
        A GloVe text file instead of the bundled vectors.
    """
    from concm.data import scenarios
    from concm.report import tables as text
    from concm.semantics.overrides import bundled
    from concm.semantics.semantics import Semantics

    if not names:
        raise Misuse("concm attributes takes class names, for example: concm attributes crane heron")
    scenario = scenarios.load_scenario(among) if among else None
    base = scenario.names[: scenario.base] if scenario else names
    by_hand = overrides or (bundled(scenario.name) if scenario else None)
    known = Semantics.of_names(base, overrides=by_hand, word_vectors=word_vectors)
    text.show_meanings(known.meanings(names))


def scenarios() -> None:
    """List the bundled scenarios."""
    from concm.data import scenarios as data
    from concm.report import tables as text

    text.show_scenarios([data.load_scenario(name) for name in data.names()])


def backbones(name: str | None = None, /) -> None:
    """List the backbones that come with concm, or say what one of them or any other is.

    Parameters
    ----------
    name
        One that comes with weights, `timm:NAME`, `hf-hub:OWNER/NAME`, `local-dir:FOLDER`, an ONNX file, or code as
        `package.module:factory`: its width, how pictures enter it, and the licence of its weights.
    """
    from concm.backbones import backbones as registered
    from concm.report import tables as text

    if name is None:
        text.show_backbones(registered())
        return
    from concm.backbones.references import load_encoder
    from concm.data.scenarios import natural

    text.show_encoder(load_encoder(name, natural(224)))
