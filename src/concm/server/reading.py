"""Requests that only look."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from concm.classifier.answers import UNKNOWN_RATE
from concm.server import openapi
from concm.server.asked import desk, near, number, query
from concm.server.desk import EXPORTS


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
    return _jpeg(request, await run_in_threadpool(desk(request).classifier.store.thumbnail, number(request)))


async def inbox(request: Request) -> Response:
    """The photos that wait for a name."""
    rate = query(request, "unknown_rate", UNKNOWN_RATE, float)
    items = await run_in_threadpool(desk(request).waiting, rate, near(request))
    return JSONResponse({"version": desk(request).classifier.version, "photos": items})


async def inbox_thumbnail(request: Request) -> Response:
    """The small picture of a photo that waits."""
    return _jpeg(request, await run_in_threadpool(desk(request).inbox.thumbnail, number(request)))


async def history(request: Request) -> Response:
    """Versions and evaluations."""
    store = desk(request).classifier.store
    versions, measured = await run_in_threadpool(lambda: (store.history(), store.evaluations()))
    return JSONResponse(
        {"versions": [asdict(row) for row in versions], "evaluations": [asdict(row) for row in measured]}
    )


async def health(request: Request) -> Response:
    """Which classes need more photos, which are confused, and by which photos."""
    return JSONResponse(await run_in_threadpool(desk(request).health))


async def map_(request: Request) -> Response:
    """Classes and photos as points in a plane."""
    return JSONResponse(await run_in_threadpool(desk(request).map))


async def card(request: Request) -> Response:
    """The model card, in Markdown."""
    headers = {"Content-Disposition": 'attachment; filename="CARD.md"'}
    return PlainTextResponse(await run_in_threadpool(desk(request).card), headers=headers)


async def jobs(request: Request) -> Response:
    """The jobs that are still remembered."""
    return JSONResponse({"jobs": [job.told() for job in desk(request).jobs.all()]})


async def job(request: Request) -> Response:
    """One job."""
    found = desk(request).jobs.get(number(request))
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


def _jpeg(request: Request, picture: bytes | None) -> Response:
    """A picture that a browser may keep if it asks each time: another store may be served here tomorrow."""
    if picture is None:
        raise HTTPException(404, "there is no such photo")
    tag = f'"{hashlib.blake2b(picture, digest_size=16).hexdigest()}"'
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture, media_type="image/jpeg", headers=headers)
