"""Photos as they are sent: counted and measured before they are decoded, and known by harmless names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from concm.classifier.photos import printable
from concm.data.images import BrokenPicture
from concm.errors import Misuse
from concm.server.predictor import Predictor, Seen

MOST_FILES = 200
MOST_BYTES = 50_000_000
"""Of one photo."""
LONGEST = 100
T = TypeVar("T")


@asynccontextmanager
async def form(request: Request) -> AsyncIterator[FormData]:
    """The parts of a request; files lie in temporary ones, which are gone afterwards."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(415, "photos are sent as multipart/form-data")
    async with request.form(max_files=MOST_FILES, max_fields=20, max_part_size=100_000) as parts:
        yield parts


async def sent(
    parts: FormData, predictor: Predictor, question: Callable[[Seen], T]
) -> list[tuple[PurePosixPath, T | BrokenPicture]]:
    """What the question finds in the photos of the field `photos`, in order, each with the folder it was named with.

    A photo that is too large is answered as one that cannot be read is, and keeps no other from its answer.
    """
    files = [part for part in parts.getlist("photos") if isinstance(part, UploadFile)]
    if not files:
        raise HTTPException(400, "no photo was sent: the field is called photos")
    asked: list[tuple[PurePosixPath, asyncio.Future[T] | BrokenPicture]] = []
    for file in files:
        path = PurePosixPath((file.filename or "photo").replace("\\", "/"))
        name = printable(path.name or "photo")[:LONGEST]
        if (file.size or 0) > MOST_BYTES:
            most = f"is too large: a photo has {MOST_BYTES // 10**6} million bytes at most"
            asked.append((path.parent, BrokenPicture(name, most)))
        else:
            asked.append((path.parent, asyncio.wrap_future(predictor.see(await file.read(), name, question))))
    found: list[tuple[PurePosixPath, T | BrokenPicture]] = []
    for folder, answer in asked:
        try:
            found.append((folder, answer if isinstance(answer, BrokenPicture) else await answer))
        except BrokenPicture as error:
            found.append((folder, error))
    return found


def check_side_by_side(folders: Iterable[PurePosixPath]) -> None:
    """Refuse folders that do not lie side by side in one: not all of them can be named after a class."""
    one, *others = dict.fromkeys(folders)
    for other in others:
        if other.parent != one.parent:
            raise Misuse(
                f"the folders {printable(str(one))} and {printable(str(other))} do not lie side by side: photos of "
                "classes come as one folder per class, all in the same folder, with the photos right inside"
            )
