"""JSON bodies and their members, or a 400 that names the fault and the fix; it reads no store and knows no route.

A member's null is as good as leaving it out. Names that nobody knows are refused: whoever sent them means something.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from sidecar.errors import ParameterInvalid
from sidecar.wire import MAX_SESSION_ID, valid_session_id

Given = Mapping[str, Any]
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_SHOWN_CHARACTERS = 64


async def json_body(request: Request) -> bytes:
    """The bytes of a body that is announced as JSON. Raises ParameterInvalid, also when it ends too early."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ParameterInvalid("Send the body as JSON, with `Content-Type: application/json`.")
    try:
        return await request.body()
    except ClientDisconnect:
        raise ParameterInvalid("The body ended before it was whole; send it again.") from None


async def json_object(request: Request, kind: Any = Any) -> dict[str, Any]:
    """The members of a JSON object, a repeated one as it stands last. Raises ParameterInvalid.

    `kind` is the type of a large body: what it does not describe is refused at once, before it takes memory and time.
    """
    body = await json_body(request)
    try:
        given = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as fault:
        raise ParameterInvalid(f"The body does not fit: {fault}. Correct it.") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise ParameterInvalid("The body is not JSON in UTF-8; send one JSON object.") from None
    if not isinstance(given, dict):
        raise ParameterInvalid("The body is not a JSON object; send one.")
    return given


def check_names(given: Given, names: Collection[str], hint: str = "") -> None:
    """Raises ParameterInvalid for a name that is not among them; `hint` says more."""
    for name in given:
        if name not in names:
            raise ParameterInvalid(f"`{shown(name)}` is unknown here; it takes {', '.join(names)}.{hint and ' '}{hint}")


def text(given: Given, name: str, most: int, *, required: bool = False) -> str | None:
    """A text that is not blank, at most so many characters long. Raises ParameterInvalid."""
    value = given.get(name)
    if value is None:
        if required:
            raise ParameterInvalid(f"`{name}` is missing; send it.")
        return None
    if not isinstance(value, str) or not value.strip():
        raise ParameterInvalid(f"`{name}` is not a text, or blank; send at most {most} characters.")
    if len(value) > most:
        raise ParameterInvalid(f"`{name}` has more than {most} characters; send fewer.")
    if _SURROGATES.search(value):
        raise ParameterInvalid(f"`{name}` holds half of a surrogate pair; send whole characters.")
    return value


def stored_id(given: Given, name: str) -> str | None:
    """The id of a conversation or a turn. Raises ParameterInvalid."""
    value = given.get(name)
    if value is not None and not (isinstance(value, str) and valid_session_id(value)):
        raise ParameterInvalid(f"`{name}` is no id; send 1 to {MAX_SESSION_ID} characters, no control character.")
    return value


def whole(given: Given, name: str, least: int, most: int, default: int) -> int:
    """A whole number, no `true` and no 1.0. Raises ParameterInvalid."""
    value = given.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise ParameterInvalid(f"`{name}` is not a whole number from {least} to {most}; send one.")
    return value


def texts(given: Given, name: str, most_items: int, most: int) -> tuple[str, ...]:
    """A list of texts. Raises ParameterInvalid."""
    value = given.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > most_items or None in value:
        raise ParameterInvalid(f"`{name}` is not a list of at most {most_items} texts; send one.")
    return tuple(text({name: each}, name, most, required=True) or "" for each in value)


def shown(name: str) -> str:
    """A name that somebody made up, fit for a message."""
    return name[:_SHOWN_CHARACTERS].encode(errors="replace").decode()
