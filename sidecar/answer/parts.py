"""Whether a turn's artifacts hold a file of a name and a type, in the spelling of either SDK; it reads no text."""

from typing import Any

from sidecar.wire import dicts, load_odd_json


def holds(artifacts: bytes | None, name: str | None, mime_types: frozenset[str]) -> bool:
    """Whether one part has a name that contains `name`, None being any, and one of these types, the empty set being
    any; the types are in lower case. What is no strict JSON holds nothing.
    """
    try:
        stored = load_odd_json(artifacts or b"[]")
    except (ValueError, RecursionError):
        return False
    parts = (part for artifact in dicts(stored) for part in dicts(artifact.get("parts")))
    return any(_is_one(part, name, mime_types) for part in parts)


def _is_one(part: dict[str, Any], name: str | None, mime_types: frozenset[str]) -> bool:
    older = part.get("file")  # 0.3 keeps both in an object of the part
    file = older if isinstance(older, dict) else {}
    names = _texts(part.get("filename"), file.get("name"))
    types = _texts(part.get("mediaType"), file.get("mimeType"))
    has_name = name is None or any(name.casefold() in each.casefold() for each in names)
    return has_name and (not mime_types or not mime_types.isdisjoint(each.lower() for each in types))


def _texts(*members: Any) -> list[str]:
    return [each for each in members if isinstance(each, str)]
