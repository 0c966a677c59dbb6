"""The HTTP API: what a request asks for is read, checked and handed to the desk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from concm.classifier.prediction import check_rate
from concm.data.images import BrokenPicture
from concm.errors import Misuse
from concm.server import openapi, uploads
from concm.server.desk import EXPORTS, Desk
from concm.server.jobs import Job
from concm.server.predictor import Seen

UNKNOWN_RATE = 0.05
WAIT = 30.0
"""Seconds that a request waits for its job before it is told to ask for it."""
KEPT = {"Cache-Control": "private, max-age=31536000, immutable"}
T = TypeVar("T")


def desk(request: Request) -> Desk:
    """What all requests share."""
    found: Desk = request.app.state.desk
    return found


# Reading


async def healthz(request: Request) -> Response:
    """The server lives."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """The store can be read and answers."""
    await run_in_threadpool(desk(request).known)
    return JSONResponse({"status": "ready"})


async def session(request: Request) -> Response:
    """What the page needs beside its cookie."""
    return JSONResponse({"csrf": request.app.state.keys.csrf})


async def status(request: Request) -> Response:
    """Version, counts and running jobs."""
    return JSONResponse(await run_in_threadpool(desk(request).status))


async def document(request: Request) -> Response:
    """The API as an OpenAPI document."""
    return JSONResponse(openapi.document())


async def classes(request: Request) -> Response:
    """All classes."""
    own = desk(request).classifier
    rows = await run_in_threadpool(lambda: own.classes)
    return JSONResponse({"version": own.version, "classes": [asdict(row) for row in rows]})


async def photos(request: Request) -> Response:
    """The photos of a class."""
    name = request.path_params["name"]
    rows = await run_in_threadpool(desk(request).classifier.photos, name)
    return JSONResponse({"class": name, "photos": [{"number": row.id, "photo": row.label} for row in rows]})


async def thumbnail(request: Request) -> Response:
    """The small picture of a taught photo."""
    return _jpeg(await run_in_threadpool(desk(request).classifier.store.thumbnail, request.path_params["number"]))


async def inbox(request: Request) -> Response:
    """The photos that wait for a name."""
    rate, nearest = _number(request, "unknown_rate", UNKNOWN_RATE, float), _number(request, "nearest", 0, int)
    items = await run_in_threadpool(desk(request).waiting, rate, min(nearest, 10))
    return JSONResponse({"version": desk(request).classifier.version, "photos": items})


async def inbox_thumbnail(request: Request) -> Response:
    """The small picture of a photo that waits."""
    return _jpeg(await run_in_threadpool(desk(request).inbox.thumbnail, request.path_params["number"]))


async def history(request: Request) -> Response:
    """Versions and evaluations."""
    store = desk(request).classifier.store
    versions, measured = await run_in_threadpool(lambda: (store.history(), store.evaluations()))
    return JSONResponse(
        {"versions": [asdict(row) for row in versions], "evaluations": [asdict(row) for row in measured]}
    )


async def health(request: Request) -> Response:
    """Which classes need more photos, which are confused, and by which photos."""
    return JSONResponse(await run_in_threadpool(lambda: desk(request).album().health()))


async def map_(request: Request) -> Response:
    """Classes and photos as points in a plane."""
    return JSONResponse(await run_in_threadpool(lambda: desk(request).album().map()))


async def card(request: Request) -> Response:
    """The model card, in Markdown."""
    headers = {"Content-Disposition": 'attachment; filename="CARD.md"'}
    return PlainTextResponse(await run_in_threadpool(desk(request).card), headers=headers)


async def jobs(request: Request) -> Response:
    """The jobs that are still remembered."""
    return JSONResponse({"jobs": [job.told() for job in desk(request).jobs.all()]})


async def job(request: Request) -> Response:
    """One job."""
    found = desk(request).jobs.get(request.path_params["number"])
    if found is None:
        raise HTTPException(404, "there is no such job, or not any more")
    return JSONResponse(found.told())


async def exported(request: Request) -> Response:
    """A file that an export wrote."""
    what = request.path_params["what"]
    file = desk(request).exports / f"{what}.zip"
    if what not in EXPORTS or not file.is_file():
        raise HTTPException(404, "nothing was exported yet")
    name = f"{desk(request).classifier.path.resolve().name}-{what}.zip"
    return FileResponse(file, media_type="application/zip", filename=name)


# Asking and changing


async def predict(request: Request) -> Response:
    """What photos show."""
    rate = _number(request, "unknown_rate", UNKNOWN_RATE, float)
    top, nearest = _number(request, "top", 5, int), _number(request, "nearest", 0, int)
    keep = request.query_params.get("keep", "unsure")
    check_rate(rate)
    if not 1 <= top <= 100 or not 0 <= nearest <= 20 or keep not in ("unsure", "all", "none"):
        raise Misuse("`top` is 1 to 100, `nearest` 0 to 20, and `keep` one of unsure, all, none")
    answers, failures = [], []
    async with uploads.form(request) as parts:
        for folder, found in await uploads.sent(parts, desk(request).predictor):
            if isinstance(found, BrokenPicture):
                failures.append(str(found))
                continue
            if keep == "none" and not nearest:
                answer = desk(request).answer(found, rate, top, 0, keep)  # too quick to be worth a thread
            else:
                answer = await run_in_threadpool(desk(request).answer, found, rate, top, nearest, keep)
            answers.append({**answer, "folder": folder} if folder else answer)
    return JSONResponse({"predictions": answers, "failures": failures}, 200 if answers else 422)


async def learn(request: Request) -> Response:
    """Teach photos: those that are sent, under `name` or the folder in their names, or those that wait in the inbox."""
    if request.headers.get("content-type", "").startswith("application/json"):
        given = await _json(request)
        chosen = _field(given, "classes", dict)
        if not all(isinstance(own, list) and all(isinstance(at, int) for at in own) for own in chosen.values()):
            raise Misuse("`classes` has for each class name the numbers of its photos in the inbox")
        return await _over(await run_in_threadpool(desk(request).learn, chosen, given.get("duplicates", "refuse")))
    async with uploads.form(request) as parts:
        name = parts.get("name")
        groups = await _labelled(request, parts, name if isinstance(name, str) else None)
        duplicates: Any = parts.get("duplicates", "refuse")
    return await _over(await run_in_threadpool(desk(request).learn_seen, groups, duplicates))


async def evaluate(request: Request) -> Response:
    """Measure the classifier on photos whose names begin with the folder of their class."""
    async with uploads.form(request) as parts:
        groups = await _labelled(request, parts, None)
    rate = _number(request, "unknown_rate", UNKNOWN_RATE, float)
    return JSONResponse(await run_in_threadpool(desk(request).evaluate, groups, rate))


async def dismiss(request: Request) -> Response:
    """Drop photos from the inbox."""
    numbers = _numbers(await _json(request), "photos")
    await run_in_threadpool(desk(request).inbox.dismiss, numbers)
    return JSONResponse({"dismissed": len(numbers)})


async def remove(request: Request) -> Response:
    """Remove taught photos."""
    numbers = _numbers(await _json(request), "photos")
    return await _over(desk(request).change("remove photos", lambda own: own.remove(numbers)))


async def move(request: Request) -> Response:
    """Move taught photos to another class."""
    given = await _json(request)
    numbers, to = _numbers(given, "photos"), _field(given, "to", str)
    return await _over(desk(request).change(f"move photos to {to}", lambda own: own.move(numbers, to)))


async def rename(request: Request) -> Response:
    """Give a class another name."""
    given = await _json(request)
    name, to = _field(given, "name", str), _field(given, "to", str)
    return await _over(desk(request).change(f"rename {name}", lambda own: own.rename(name, to)))


async def merge(request: Request) -> Response:
    """Make one class of several."""
    given = await _json(request)
    names, into = _field(given, "names", list), _field(given, "into", str)
    return await _over(desk(request).change(f"merge into {into}", lambda own: own.merge(list(map(str, names)), into)))


async def forget(request: Request) -> Response:
    """Drop a class."""
    name = _field(await _json(request), "name", str)
    return await _over(desk(request).change(f"forget {name}", lambda own: own.forget(name)))


async def undo(request: Request) -> Response:
    """Step back one version."""
    version = (await _json(request)).get("version")
    if version is not None and not isinstance(version, int):
        raise Misuse("`version` is a number")
    return await _over(desk(request).undo(version))


async def export(request: Request) -> Response:
    """Write the classifier as ONNX, or a backup of its store, as a job."""
    return await _over(desk(request).export(_field(await _json(request), "what", str)))


# What they share


async def _over(job: Job) -> Response:
    """What a job came to, or where to ask for it if it takes long."""
    done = await asyncio.to_thread(job.over.wait, WAIT)
    return JSONResponse(job.told(), job.status if done else 202, {} if done else {"Location": f"/api/jobs/{job.id}"})


async def _labelled(request: Request, parts: Any, name: str | None) -> dict[str, list[Seen]]:
    """The photos that were sent, by class; one that cannot be read refuses them all."""
    groups: dict[str, list[Seen]] = {}
    for folder, found in await uploads.sent(parts, desk(request).predictor):
        if isinstance(found, BrokenPicture):
            raise found
        if not (name or folder):
            raise Misuse("photos need the field `name`, or file names such as class/photo.jpg")
        groups.setdefault(name or folder, []).append(found)
    return groups


async def _json(request: Request) -> Mapping[str, Any]:
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "this is sent as application/json")
    try:
        given = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "this is no JSON") from error
    if not isinstance(given, dict):
        raise HTTPException(400, "a JSON object is expected")
    return given


def _field(given: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = given.get(name)
    if not isinstance(value, kind) or not value:
        raise Misuse(f"`{name}` is missing")
    return value


def _numbers(given: Mapping[str, Any], name: str) -> list[int]:
    numbers = _field(given, name, list)
    if not all(isinstance(number, int) and abs(number) < 2**63 for number in numbers):
        raise Misuse(f"`{name}` is a list of the photos' numbers")
    return numbers


def _number(request: Request, name: str, default: Any, kind: type[Any]) -> Any:
    try:
        return kind(request.query_params.get(name, default))
    except ValueError:
        raise Misuse(f"`{name}` is a number, not {request.query_params[name]!r}") from None


def _jpeg(picture: bytes | None) -> Response:
    if picture is None:
        raise HTTPException(404, "there is no such photo")
    return Response(picture, media_type="image/jpeg", headers=KEPT)


ROUTES = [
    Route("/healthz", healthz),
    Route("/readyz", readyz),
    Route("/api/session", session),
    Route("/api/openapi.json", document),
    Route("/api/status", status),
    Route("/api/predict", predict, methods=["POST"]),
    Route("/api/learn", learn, methods=["POST"]),
    Route("/api/inbox", inbox),
    Route("/api/inbox/dismiss", dismiss, methods=["POST"]),
    Route("/api/inbox/{number:int}/thumbnail", inbox_thumbnail),
    Route("/api/classes", classes),
    Route("/api/classes/rename", rename, methods=["POST"]),
    Route("/api/classes/merge", merge, methods=["POST"]),
    Route("/api/classes/forget", forget, methods=["POST"]),
    Route("/api/classes/{name}/photos", photos),
    Route("/api/photos/remove", remove, methods=["POST"]),
    Route("/api/photos/move", move, methods=["POST"]),
    Route("/api/photos/{number:int}/thumbnail", thumbnail),
    Route("/api/history", history),
    Route("/api/undo", undo, methods=["POST"]),
    Route("/api/evaluate", evaluate, methods=["POST"]),
    Route("/api/health", health),
    Route("/api/map", map_),
    Route("/api/card", card),
    Route("/api/export", export, methods=["POST"]),
    Route("/api/exports/{what}", exported),
    Route("/api/jobs", jobs),
    Route("/api/jobs/{number:int}", job),
]
