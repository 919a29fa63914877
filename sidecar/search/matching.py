"""How either database is asked for the fields that hold lexemes and were indexed as some owners'; it runs nothing."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Text, and_

from sidecar.reading import parameter
from sidecar.search.index import lexeme_of, spelled
from tombstones.table import Shape


def holds(shape: Shape, *, is_narrowed: bool) -> ColumnElement[bool]:
    """The field holds every lexeme, and was indexed as one of these owners'; whose it is now is looked up later."""
    lexemes = shape.search.lexemes
    if shape.sqlite:
        return lexemes.c[lexemes.name].op("MATCH")(parameter("wanted", Text()))
    every: ColumnElement[bool] = lexemes.c.lexemes.op("@>")(parameter("wanted", ARRAY(Text)))
    if not is_narrowed:
        return every
    return and_(every, lexemes.c.lexemes.op("&&")(parameter("owners", ARRAY(Text))))


def asked(shape: Shape, lexemes: Iterable[str], owners: frozenset[str] | None) -> dict[str, Any]:
    """The parameters of `holds`: all of the lexemes, and any of the owners; None is everybody."""
    marks = [lexeme_of(owner) for owner in owners or ()]
    if not shape.sqlite:
        return {"wanted": list(lexemes), "owners": marks}
    tokens, any_of = ([f'"{spelled(each)}"' for each in some] for some in (lexemes, marks))
    if owners is not None:
        tokens.append(f"({' OR '.join(any_of)})")
    return {"wanted": " AND ".join(tokens)}
