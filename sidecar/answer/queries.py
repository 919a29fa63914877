"""Bodies, query strings and a tool's arguments to frozen dataclasses, or a 400 that names the fault; it reads no store.

A parameter that is not known here is ignored in a query string, and refused in a body and among a tool's arguments.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sidecar import params
from sidecar.bodies import Given, check_names, stored_id, text, whole
from sidecar.errors import ParameterInvalid
from tombstones.state import ACTIVE, FINISHED, name_of

MAX_QUESTION = 16_000
MAX_WORKSPACE = 256
MAX_FILTER = 256
MAX_LIST = 1_000
DEFAULT_LIMIT, MAX_LIMIT = 10, 100
MAX_QUERIES = 20
MAX_CONCURRENCY = 4

FILTERS = ("documentId", "runId", "filenameContains", "tags", "mimeTypes")
NAMES = ("q", "workspaceId", "limit", *FILTERS)
ENHANCEMENTS = (
    "hyde",
    "rerank",
    "reranking",
    "compress",
    "compression",
    "rewrite",
    "queryRewriting",
    "decompose",
    "queryDecomposition",
    "graphExpansion",
)
"""Optional enhancements of seed 004 that are not built: `false` asks for nothing, and anything else is refused."""


_Scalar = str | int | float | bool | None
BatchBody = dict[str, _Scalar | list[dict[str, _Scalar]]]
"""What the body of a batch may be made of; nothing in it is nested deeper."""


@dataclass(frozen=True, slots=True)
class PassageQuery:
    """A question and what its passages may come from (seed 004).

    `states` are spelled as in `completed`, whichever spelling was sent and is stored; a name that is no state matches
    no turn, the empty set is any state, and empty `mime_types`, in lower case, are any type.
    """

    q: str
    workspace: str
    limit: int
    session_id: str | None
    task_id: str | None
    filename_contains: str | None
    states: frozenset[str]
    mime_types: frozenset[str]


@dataclass(frozen=True, slots=True)
class BatchQuery:
    """`POST /v1/search/batch`: at most `concurrency` of the queries are answered at a time."""

    queries: tuple[PassageQuery, ...]
    concurrency: int


def passage_query(given: Given) -> PassageQuery:
    """The members of a body, or a tool's arguments. Raises ParameterInvalid."""
    check_names({name: value for name, value in given.items() if name not in ENHANCEMENTS}, NAMES)
    for name in ENHANCEMENTS:
        if given.get(name) is not None and given[name] is not False:
            raise ParameterInvalid(f"`{name}` is not built here; send false or leave it out.")
    return PassageQuery(
        q=text(given, "q", MAX_QUESTION, required=True) or "",
        workspace=text(given, "workspaceId", MAX_WORKSPACE, required=True) or "",
        limit=whole(given, "limit", 1, MAX_LIMIT, DEFAULT_LIMIT),
        session_id=stored_id(given, "documentId"),
        task_id=stored_id(given, "runId"),
        filename_contains=text(given, "filenameContains", MAX_FILTER),
        states=frozenset(map(name_of, _listed(given, "tags"))),
        mime_types=frozenset(each.lower() for each in _listed(given, "mimeTypes")),
    )


def passage_query_string(query_string: bytes) -> PassageQuery:
    """The same for `GET /v1/search`. Raises ParameterInvalid."""
    given = params.known(params.pairs(query_string), (*NAMES, *ENHANCEMENTS))
    return passage_query({name: _as_json(name, value) for name, value in given.items()})


def batch_query(given: Given) -> BatchQuery:
    """The envelope with all its queries. Raises ParameterInvalid, which names each query that has a fault."""
    check_names(given, ("queries", "concurrency"))
    queries = given.get("queries")
    if not isinstance(queries, list) or not 1 <= len(queries) <= MAX_QUERIES:
        raise ParameterInvalid(f"`queries` is not a list of 1 to {MAX_QUERIES} search inputs; send one.")
    concurrency = whole(given, "concurrency", 1, MAX_CONCURRENCY, MAX_CONCURRENCY)
    faults: list[str] = []
    return BatchQuery(tuple(_each(queries, faults)), concurrency)


STATES = tuple(sorted({name_of(state) for state in ACTIVE | FINISHED}))
"""The states that there are, as queries spell them."""


def _each(queries: list[Any], faults: list[str]) -> Iterator[PassageQuery]:
    for index, given in enumerate(queries):
        try:
            if not isinstance(given, dict):
                raise ParameterInvalid("it is not a JSON object; send one.")
            yield passage_query(given)
        except ParameterInvalid as fault:
            faults.append(f"queries[{index}]: {fault.detail}")
    if faults:
        raise ParameterInvalid(" ".join(faults))


def _as_json(name: str, value: str) -> Any:
    """A parameter as a body would spell it; what it cannot be stays text, and is refused as such."""
    if name == "limit" and re.fullmatch("[1-9][0-9]{0,9}", value):
        return int(value)
    if name in ENHANCEMENTS and value == "false":
        return False
    return value


def _listed(given: Given, name: str) -> frozenset[str]:
    """The items of a text that separates them by commas."""
    value = text(given, name, MAX_LIST)
    items = frozenset(item.strip() for item in value.split(",")) if value is not None else frozenset()
    if "" in items:
        raise ParameterInvalid(f"`{name}` has an empty item; separate the items by single commas.")
    return items
