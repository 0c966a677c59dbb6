"""Where a table's figures come from: the backbone, its base session, the machine."""

from __future__ import annotations

from collections import Counter

from concm.evaluation.statistics import Table
from concm.methods.choice import known
from concm.records import to_json
from concm.training.recipe import Recipe


def backbone(found: Table) -> str:
    """The backbone, its weights and its base session."""
    return f"{found.backbone['name']} (weights `{found.backbone['weights']}`, base session: {schedule(found)})"


def schedule(found: Table) -> str:
    """How long the base session was, and where that is not the schedule of the method whose it was."""
    recipe = found.recipe
    if not recipe:
        return "ready-made"
    name, changed = found.base_session, ""
    choice = known(name) if name else None
    objective = choice.entry.objective if choice else None
    if objective is not None:
        full = to_json(objective.schedule)
        other = [
            f"{key} {recipe[key]} for {full[key]}"
            for key in full
            if key != "seed" and key in recipe and recipe[key] != full[key]
        ]
        changed = f" ({', '.join(other)})" if other else ""
    return f"{recipe['epochs']} epochs{changed}"


def varied(found: Table) -> str:
    """What a base session of ours had otherwise than by default."""
    recipe, default = found.recipe, to_json(Recipe())
    return ", ".join(f"{key} {recipe[key]}" for key in default if key in recipe and recipe[key] != default[key])


def given(found: Table) -> str:
    """What the bank gave to every method, as a sentence; nothing where the table does not say it."""
    bank = found.given
    if bank is None:
        return ""
    trained = f"{bank.base} of the {bank.on} images of each base class that were trained on"
    held = f" and {bank.held} that were not" if bank.held else ""
    viewed = f", {bank.base_views} views each" if bank.base_views else ""
    shots = f"{bank.candidates} candidates of each novel class" + (f", {bank.views} views each" if bank.views else "")
    seen = "once" if found.passes == 1 else f"{found.passes} times"
    part = (
        f" So what is trained on base features sees {100 * bank.base / bank.on:.0f} % of them, and references are no "
        "upper bounds."
    )
    tested = f" They are tested on {bank.test} images of a class." if bank.test else ""
    about = f" Methods see {trained}{held}{viewed}, and {shots}; the backbone saw each picture {seen}.{tested}"
    return about + (part if bank.base < bank.on else "")


def draws(found: Table) -> str:
    """How many draws the rows have: quick methods may have more of them than slow ones."""
    counts = sorted({len(row.by_draw.get("draw", ())) or found.draws for row in found.rows})
    return f"{counts[0]} to {counts[-1]} draws" if len(counts) > 1 else f"{found.draws} draws"


def ran(found: Table) -> str:
    """Where, and how many at a time: what seconds mean."""
    main = Counter(row.device for row in found.rows).most_common(1)[0][0]
    said = f"{draws(found)}, measured on {main}" + (f", {found.at_once} runs at a time" if found.at_once else "")
    elsewhere = [f"`{row.method}`" for row in found.rows if row.device != main]
    others = " and ".join(dict.fromkeys(str(row.device) for row in found.rows if row.device != main))
    return f"{said} ({', '.join(elsewhere)} on {others})" if elsewhere else said
