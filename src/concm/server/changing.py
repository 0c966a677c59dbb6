"""Requests that ask about photos, and those that change what the classifier knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from concm.classifier.answers import UNKNOWN_RATE, check_rate
from concm.data.images import BrokenPicture
from concm.errors import Misuse
from concm.server import uploads
from concm.server.asked import are_numbers, body, desk, field, near, numbers, query
from concm.server.desk import is_question
from concm.server.jobs import Job
from concm.server.predictor import Seen

WAIT = 30.0
"""Seconds that a request waits for its job before it is told to ask for it."""


async def predict(request: Request) -> Response:
    """What photos show."""
    rate = query(request, "unknown_rate", UNKNOWN_RATE, float)
    top, nearest = query(request, "top", 5, int), near(request)
    keep = request.query_params.get("keep", "unsure")
    check_rate(rate)
    if not 1 <= top <= 100 or keep not in ("unsure", "all", "none"):
        raise Misuse("`top` is 1 to 100, and `keep` one of unsure, all, none")
    own, answers, failures = desk(request), [], []
    async with uploads.form(request) as parts:
        for folder, found in await uploads.sent(parts, own.predictor, lambda seen: (seen, own.said(seen, rate, top))):
            if isinstance(found, BrokenPicture):
                failures.append(str(found))
                continue
            seen, prediction = found
            answer: dict[str, Any] = dict(vars(prediction))
            if keep == "all" or (keep == "unsure" and is_question(prediction)):
                answer["inbox"] = await run_in_threadpool(own.keep, seen, prediction)
            if nearest:
                answer["nearest"] = await run_in_threadpool(own.nearest, seen, nearest)
            answers.append({**answer, "folder": folder.name} if folder.name else answer)
    return JSONResponse({"predictions": answers, "failures": failures}, 200 if answers else 422)


async def learn(request: Request) -> Response:
    """Teach photos: those that are sent, under `name` or the folder in their names, or those that wait in the inbox."""
    if request.headers.get("content-type", "").startswith("application/json"):
        given = await body(request)
        chosen = field(given, "classes", dict)
        if not all(are_numbers(own) for own in chosen.values()):
            raise Misuse("`classes` has for each class name the numbers of its photos in the inbox")
        how = [given.get(name, "refuse") for name in ("duplicates", "similar_names")]
        return await _over(await run_in_threadpool(desk(request).learn, chosen, *how))
    async with uploads.form(request) as parts:
        name = parts.get("name")
        groups = await _labelled(request, parts, name if isinstance(name, str) else None)
        ways: list[Any] = [parts.get(name, "refuse") for name in ("duplicates", "similar_names")]
    return await _over(await run_in_threadpool(desk(request).learn_seen, groups, *ways))


async def evaluate(request: Request) -> Response:
    """Measure the classifier on photos whose names begin with the folder of their class."""
    async with uploads.form(request) as parts:
        groups = await _labelled(request, parts, None)
    rate = query(request, "unknown_rate", UNKNOWN_RATE, float)
    return JSONResponse(await run_in_threadpool(desk(request).evaluate, groups, rate))


async def dismiss(request: Request) -> Response:
    """Drop photos from the inbox."""
    chosen = numbers(await body(request), "photos")
    await run_in_threadpool(desk(request).inbox.dismiss, chosen)
    return JSONResponse({"dismissed": len(chosen)})


async def remove(request: Request) -> Response:
    """Remove taught photos."""
    chosen = numbers(await body(request), "photos")
    return await _over(desk(request).change("remove photos", lambda own: own.remove(chosen)))


async def move(request: Request) -> Response:
    """Move taught photos to another class."""
    given = await body(request)
    chosen, to, ways = numbers(given, "photos"), field(given, "to", str), _ways(given)
    return await _over(desk(request).change(f"move photos to {to}", lambda own: own.move(chosen, to, **ways)))


async def rename(request: Request) -> Response:
    """Give a class another name."""
    given = await body(request)
    name, to, ways = field(given, "name", str), field(given, "to", str), _ways(given)
    return await _over(desk(request).change(f"rename {name}", lambda own: own.rename(name, to, **ways)))


async def merge(request: Request) -> Response:
    """Make one class of several."""
    given = await body(request)
    names, into = field(given, "names", list), field(given, "into", str)
    return await _over(desk(request).change(f"merge into {into}", lambda own: own.merge(list(map(str, names)), into)))


async def forget(request: Request) -> Response:
    """Drop a class."""
    name = field(await body(request), "name", str)
    return await _over(desk(request).change(f"forget {name}", lambda own: own.forget(name)))


async def undo(request: Request) -> Response:
    """Step back one version."""
    version = (await body(request)).get("version")
    if version is not None and not isinstance(version, int):
        raise Misuse("`version` is a number")
    return await _over(desk(request).undo(version))


async def export(request: Request) -> Response:
    """Write the classifier as ONNX, or a backup of its store, as a job."""
    return await _over(desk(request).export(field(await body(request), "what", str)))


def _ways(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a correction is to do with a name that is almost a known one, if that was said."""
    return {name: value for name, value in given.items() if name == "similar_names"}


async def _over(job: Job) -> Response:
    """What a job came to, or where to ask for it if it takes long."""
    done = await asyncio.to_thread(job.over.wait, WAIT)
    return JSONResponse(job.told(), job.status if done else 202, {} if done else {"Location": f"/api/jobs/{job.id}"})


async def _labelled(request: Request, parts: Any, name: str | None) -> dict[str, list[Seen]]:
    """The photos that were sent, by class; one that cannot be read refuses them all."""
    groups: dict[str, list[Seen]] = {}
    every = await uploads.sent(parts, desk(request).predictor, lambda seen: seen)
    if not name:
        uploads.check_side_by_side(folder for folder, _ in every)
    for folder, found in every:
        if isinstance(found, BrokenPicture):
            raise found
        if not (name or folder.name):
            raise Misuse("photos need the field `name`, or file names such as class/photo.jpg")
        groups.setdefault(name or folder.name, []).append(found)
    return groups
