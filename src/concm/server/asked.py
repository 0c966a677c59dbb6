"""What a request says: its fields, checked before anything is done with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from concm.errors import Misuse
from concm.server.desk import Desk

MOST_NEAR = 20
LARGEST = 2**63 - 1
"""The largest number that a database has."""
T = TypeVar("T")


def desk(request: Request) -> Desk:
    """What all requests share."""
    found: Desk = request.app.state.desk
    return found


async def body(request: Request) -> Mapping[str, Any]:
    """The JSON object that was sent."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "this is sent as application/json")
    try:
        given = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "this is no JSON") from error
    if not isinstance(given, dict):
        raise HTTPException(400, "a JSON object is expected")
    return given


def field(given: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """One of its fields, which must be there."""
    value = given.get(name)
    if not isinstance(value, kind) or not value:
        raise Misuse(f"`{name}` is missing")
    return value


def numbers(given: Mapping[str, Any], name: str) -> list[int]:
    """A list of photos by their numbers."""
    found = field(given, name, list)
    if not are_numbers(found):
        raise Misuse(f"`{name}` is a list of the photos' numbers")
    return found


def are_numbers(given: object) -> bool:
    """Whether this is a list of numbers that photos can have."""
    return isinstance(given, list) and all(type(number) is int and abs(number) <= LARGEST for number in given)


def number(request: Request) -> int:
    """The number in the path; what no photo and no job can have is not there."""
    digits = request.path_params["number"]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(LARGEST)) and int(digits) <= LARGEST):
        raise HTTPException(404, "there is nothing of this number")
    return int(digits)


def query(request: Request, name: str, default: Any, kind: type[Any]) -> Any:
    """A number in the address."""
    try:
        return kind(request.query_params.get(name, default))
    except ValueError:
        raise Misuse(f"`{name}` is a number, not {request.query_params[name]!r}") from None


def near(request: Request) -> int:
    """How many of the nearest taught photos are asked for."""
    count: int = query(request, "nearest", 0, int)
    if not 0 <= count <= MOST_NEAR:
        raise Misuse(f"`nearest` is 0 to {MOST_NEAR}")
    return count
