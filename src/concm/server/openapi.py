"""The API in words that programs understand: an OpenAPI document, made from one line for each request."""

from __future__ import annotations

from typing import Any

from concm import __version__
from concm.classifier.answers import UNKNOWN_RATE

TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
NUMBERS = {"type": "array", "items": WHOLE}
PHOTOS = {"type": "array", "items": {"type": "string", "format": "binary"}}
DUPLICATES = {"type": "string", "enum": ["refuse", "skip"], "default": "refuse"}
SIMILAR = {"type": "string", "enum": ["refuse", "keep"], "default": "refuse"}
RATE = {"unknown_rate": {**NUMBER, "default": UNKNOWN_RATE, "minimum": 0, "exclusiveMaximum": 1}}

NEAREST = {
    "nearest": {
        **WHOLE,
        "default": 0,
        "minimum": 0,
        "maximum": 20,
        "description": "how many taught photos that look like it",
    }
}


def _object(required: str = "", /, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": fields}
    return {**found, "required": required.split()} if required else found


CHOICE = {
    **_object(duplicates=TEXT, similar_names=TEXT),
    "description": "a field with which the same request is not refused, where that is for somebody to decide",
}
SCHEMAS = {
    "Error": _object("error", error=TEXT, choice=CHOICE),
    "Near": _object("number photo class likeness", number=WHOLE, photo=TEXT, **{"class": TEXT, "likeness": NUMBER}),
    "Prediction": _object(
        "label score top unknown novel version photo familiarity",
        label={**TEXT, "description": "the class, or unknown"},
        score={**NUMBER, "description": "the probability of the best guess"},
        top={"type": "array", "items": {"type": "array", "prefixItems": [TEXT, NUMBER]}},
        unknown={"type": "boolean"},
        novel={"type": "boolean", "description": "whether the best guess came after the base classes"},
        version=WHOLE,
        photo=TEXT,
        familiarity={"type": ["number", "null"], "description": "the share of known photos that look stranger"},
        inbox={**WHOLE, "description": "its number in the inbox, if it is kept there"},
        folder={**TEXT, "description": "the folder that its file name began with, if any"},
        nearest={"type": "array", "items": {"$ref": "#/components/schemas/Near"}},
    ),
    "Version": _object(
        "changed version remarks",
        changed={"type": "boolean", "description": "whether a version was made; else it says no more than its number"},
        version=WHOLE,
        action=TEXT,
        detail=TEXT,
        created=TEXT,
        classes=WHOLE,
        photos=WHOLE,
        remarks={"type": "array", "items": TEXT},
    ),
    "Job": _object(
        "job title state",
        job=WHOLE,
        title=TEXT,
        state={"type": "string", "enum": ["waiting", "running", "done", "failed"]},
        percent={**WHOLE, "description": "how much of a running job is done, where that can be known"},
        error=TEXT,
        choice=CHOICE,
    ),
}

READING = {
    "/healthz": "Whether the server lives; needs no token.",
    "/readyz": "Whether it can answer; needs no token.",
    "/api/session": "The CSRF token that the page sends beside its cookie.",
    "/api/openapi.json": "This document.",
    "/api/status": "Version, counts, jobs that are not over, and how far a check is, in per cent of its present step.",
    "/api/inbox": "The photos that wait for a name, with what the newest version says of them.",
    "/api/inbox/{number}/thumbnail": "The small picture of a photo in the inbox.",
    "/api/classes": "All classes with the numbers of their photos.",
    "/api/classes/{name}/photos": "The photos of a class.",
    "/api/photos/{number}/thumbnail": "The small picture of a taught photo.",
    "/api/history": "The versions that led to the newest, and what was measured of them.",
    "/api/health": "Which classes need more photos, which are confused, and by which photos.",
    "/api/map": "Classes and photos as points in a plane.",
    "/api/card": "The model card, in Markdown.",
    "/api/exports/{what}": "The file that an export wrote.",
    "/api/jobs": "The jobs that are still remembered.",
    "/api/jobs/{number}": "A job.",
}
QUERIES: dict[str, dict[str, Any]] = {
    "/api/predict": {
        **RATE,
        "top": {**WHOLE, "default": 5, "minimum": 1, "maximum": 100, "description": "how many guesses"},
        **NEAREST,
        "keep": {
            "type": "string",
            "enum": ["unsure", "all", "none"],
            "default": "unsure",
            "description": "which photos are kept in the inbox, to be named later",
        },
    },
    "/api/inbox": {**RATE, **NEAREST},
    "/api/evaluate": RATE,
}
FORM, JSON = "multipart/form-data", "application/json"
CHANGING: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "/api/predict": ("What photos show.", {FORM: _object("photos", photos=PHOTOS)}),
    "/api/learn": (
        "Teach photos: those that are sent, under `name` or the folder in their file names (folders that lie side by "
        "side), or those in the inbox.",
        {
            FORM: _object("photos", photos=PHOTOS, name=TEXT, duplicates=DUPLICATES, similar_names=SIMILAR),
            JSON: _object(
                "classes",
                classes={"type": "object", "additionalProperties": NUMBERS},
                duplicates=DUPLICATES,
                similar_names=SIMILAR,
            ),
        },
    ),
    "/api/inbox/dismiss": ("Drop photos from the inbox.", {JSON: _object("photos", photos=NUMBERS)}),
    "/api/classes/rename": (
        "Give a class another name.",
        {JSON: _object("name to", name=TEXT, to=TEXT, similar_names=SIMILAR)},
    ),
    "/api/classes/merge": (
        "Make one class of several.",
        {JSON: _object("names into", names={"type": "array", "items": TEXT}, into=TEXT)},
    ),
    "/api/classes/forget": ("Drop a class.", {JSON: _object("name", name=TEXT)}),
    "/api/photos/remove": ("Remove taught photos.", {JSON: _object("photos", photos=NUMBERS)}),
    "/api/photos/move": (
        "Move taught photos to another class.",
        {JSON: _object("photos to", photos=NUMBERS, to=TEXT, similar_names=SIMILAR)},
    ),
    "/api/undo": (
        "Step back one version; with `version`, only if that is still the newest.",
        {JSON: _object(version=WHOLE)},
    ),
    "/api/evaluate": (
        "Measure the classifier on photos whose file names begin with the folder of their class.",
        {FORM: _object("photos", photos=PHOTOS)},
    ),
    "/api/export": (
        "Write the classifier as ONNX, or a backup of its store.",
        {JSON: _object("what", what={"type": "string", "enum": ["onnx", "backup"]})},
    ),
}
PREDICTIONS = _object(
    "predictions failures",
    predictions={"type": "array", "items": {"$ref": "#/components/schemas/Prediction"}},
    failures={"type": "array", "items": TEXT},
)
CHANGED = {"allOf": [{"$ref": "#/components/schemas/Job"}, {"$ref": "#/components/schemas/Version"}]}
PLAIN = ("/api/predict", "/api/evaluate", "/api/inbox/dismiss", "/api/export")
"""Requests that do not make a version."""


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {path: {"get": _operation(path, words)} for path, words in READING.items()}
    for path, (words, bodies) in CHANGING.items():
        operation = _operation(path, words)
        content = {kind: {"schema": schema} for kind, schema in bodies.items()}
        operation["requestBody"] = {"required": True, "content": content}
        if path not in PLAIN:
            operation["responses"]["202"] = {"description": "It takes long: ask for the job in Location."}
            operation["responses"]["200"] = _answer(CHANGED)
        elif path == "/api/predict":
            operation["responses"]["200"] = _answer(PREDICTIONS)
        paths.setdefault(path, {})["post"] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "concm", "version": __version__, "description": "A photo classifier that learns."},
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(path: str, words: str) -> dict[str, Any]:
    kinds = {"{number}": WHOLE, "{name}": TEXT, "{what}": TEXT}
    parameters: list[dict[str, Any]] = [
        {"name": part.strip("{}"), "in": "path", "required": True, "schema": kinds[part]}
        for part in path.split("/")
        if part in kinds
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in QUERIES.get(path, {}).items()]
    refused = {"description": "It was refused, and this is why.", **_content({"$ref": "#/components/schemas/Error"})}
    found: dict[str, Any] = {"summary": words, "responses": {"200": {"description": "Fine."}, "default": refused}}
    if parameters:
        found["parameters"] = parameters
    if not path.startswith("/api"):
        found["security"] = []
    return found


def _answer(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "Fine.", **_content(schema)}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {JSON: {"schema": schema}}}
