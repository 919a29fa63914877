"""What a retrieval may be asked for (seed 004): every parameter, its limits and its refusals; no store is needed."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from sidecar.answer import queries
from sidecar.answer.queries import PassageQuery, batch_query, passage_query, passage_query_string
from sidecar.errors import ParameterInvalid

LEAST = {"q": "okapi", "workspaceId": "default"}
NOTHING: frozenset[str] = frozenset()
ASKED = PassageQuery("okapi", "default", 10, None, None, None, NOTHING, NOTHING)
FIELDS = {
    "q": "q",
    "workspaceId": "workspace",
    "limit": "limit",
    "documentId": "session_id",
    "runId": "task_id",
    "filenameContains": "filename_contains",
    "tags": "states",
    "mimeTypes": "mime_types",
}
COMPLETED = frozenset({"completed"})


def test_least_query() -> None:
    """A question and a workspace are enough; ten passages by default, of everything."""
    assert ASKED == passage_query(LEAST)
    assert ASKED == passage_query_string(urlencode(LEAST).encode())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("q", "界" * 16_000, "界" * 16_000),
        ("q", " okapi ", " okapi "),
        ("workspaceId", "w" * 256, "w" * 256),
        ("limit", 1, 1),
        ("limit", 100, 100),
        ("documentId", "chat-漢/ü", "chat-漢/ü"),
        ("documentId", "x" * 255, "x" * 255),
        ("runId", "t-1", "t-1"),
        ("filenameContains", "Report", "Report"),
        ("filenameContains", "f" * 256, "f" * 256),
        ("tags", "completed", COMPLETED),
        ("tags", "TASK_STATE_COMPLETED", COMPLETED),
        ("tags", "completed,TASK_STATE_COMPLETED", COMPLETED),
        ("tags", "operations", frozenset({"operations"})),
        ("tags", "input-required, TASK_STATE_AUTH_REQUIRED", frozenset({"input-required", "auth-required"})),
        ("mimeTypes", "text/csv", frozenset({"text/csv"})),
        ("mimeTypes", "Text/CSV , image/png", frozenset({"text/csv", "image/png"})),
    ],
)
def test_parameters(name: str, value: Any, expected: Any) -> None:
    """Each parameter at its limits, in a body and in a query string alike."""
    given = {**LEAST, name: value}
    for query in (passage_query(given), passage_query_string(urlencode(given).encode())):
        assert expected == getattr(query, FIELDS[name])


@pytest.mark.parametrize("name", queries.NAMES[2:])
def test_null_is_as_good_as_leaving_it_out(name: str) -> None:
    """Clients write null for what they have no value for."""
    assert ASKED == passage_query({**LEAST, name: None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("q", value) for value in ("", " \n", "x" * 16_001, 7, ["okapi"], "\ud800", None)],
        *[("workspaceId", value) for value in ("", " ", "w" * 257, 7, None)],
        *[("limit", value) for value in (0, 101, -1, 2**70, 1.0, 5.5, True, False, "5", [5])],
        *[("documentId", value) for value in ("", "x" * 256, "a\nb", "\ud800", 7)],
        *[("runId", value) for value in ("", "x" * 256, "a\0b", 7)],
        *[("filenameContains", value) for value in ("", " ", "f" * 257, 7, True)],
        *[("tags", value) for value in ("", ",", "completed,", ["completed"], 7)],
        *[("mimeTypes", value) for value in ("", ",", "text/csv,,image/png", "m" * 1001, ["text/csv"])],
        *[("workspace", "default"), ("Q", "okapi"), ("owner", "alice"), ("token", "x")],
    ],
)
def test_refused_members(name: str, value: Any) -> None:
    """A wrong value, or a name that nobody knows, is refused by its name."""
    with pytest.raises(ParameterInvalid) as refused:
        passage_query({**LEAST, name: value})
    assert f"`{name}`" in refused.value.detail


@pytest.mark.parametrize("limit", ["0", "101", "-1", "1.0", "1e1", "true", "", "05", "٣", "99999999999", "9" * 5000])
def test_refused_limits_of_a_query_string(limit: str) -> None:
    """Only plain digits are a number, and a limit that is too high is refused rather than lowered."""
    with pytest.raises(ParameterInvalid, match="`limit` is not a whole number from 1 to 100"):
        passage_query_string(urlencode({**LEAST, "limit": limit}).encode())


def test_query_strings_ignore_what_they_do_not_know() -> None:
    """A newer client may send a parameter that this server predates; one that is known is sent once."""
    assert ASKED == passage_query_string(urlencode({**LEAST, "newer": "1", "Limit": "0"}).encode())
    with pytest.raises(ParameterInvalid, match="`q` is repeated"):
        passage_query_string(b"q=a&workspaceId=default&q=b")
    with pytest.raises(ParameterInvalid, match="percent-encoded"):
        passage_query_string(b"q=%ff&workspaceId=default")


@pytest.mark.parametrize("name", queries.ENHANCEMENTS)
def test_enhancements_that_are_not_built(name: str) -> None:
    """Each is off, and may be said to be off; whoever asks for it is told that it is not there."""
    assert ASKED == passage_query({**LEAST, name: False})
    assert ASKED == passage_query_string(urlencode({**LEAST, name: "false"}).encode())
    values: tuple[Any, ...] = (True, "false", 0, 1, {})
    for value in values:
        with pytest.raises(ParameterInvalid, match=f"`{name}` is not built here; send false or leave it out"):
            passage_query({**LEAST, name: value})
    with pytest.raises(ParameterInvalid, match=f"`{name}` is not built here"):
        passage_query_string(urlencode({**LEAST, name: "true"}).encode())


# --- batches


def test_batches() -> None:
    """One query to twenty in their order, one to four at a time, four by default."""
    assert queries.BatchQuery((ASKED,), 4) == batch_query({"queries": [LEAST]})
    many = [{**LEAST, "q": f"okapi {number}"} for number in range(20)]
    found = batch_query({"queries": many, "concurrency": 1})
    assert [each["q"] for each in many] == [each.q for each in found.queries]
    assert 1 == found.concurrency


@pytest.mark.parametrize(
    "given", [{}, {"queries": None}, *({"queries": each} for each in ([], [LEAST] * 21, LEAST, "x"))]
)
def test_refused_queries(given: Any) -> None:
    """Neither none nor more than twenty."""
    with pytest.raises(ParameterInvalid, match="`queries` is not a list of 1 to 20"):
        batch_query(given)


@pytest.mark.parametrize("concurrency", [0, 5, -1, 1.0, True, "4", [4]])
def test_refused_concurrency(concurrency: Any) -> None:
    """A whole number from 1 to 4."""
    with pytest.raises(ParameterInvalid, match="`concurrency` is not a whole number from 1 to 4"):
        batch_query({"queries": [LEAST], "concurrency": concurrency})


def test_an_envelope_takes_no_other_member() -> None:
    """What belongs into a query is not guessed to be for all of them."""
    with pytest.raises(ParameterInvalid, match="`workspaceId` is unknown here"):
        batch_query({"queries": [LEAST], "workspaceId": "default"})


def test_every_bad_query_of_a_batch_is_named() -> None:
    """One answer tells all that is to be mended, each query's place with its fault, and no place that is right."""
    given = [LEAST, {**LEAST, "limit": 101}, 7, LEAST, {"q": "okapi"}, {**LEAST, "hyde": True}]
    with pytest.raises(ParameterInvalid) as refused:
        batch_query({"queries": given})
    detail = refused.value.detail
    for place, fault in ((1, "`limit`"), (2, "it is not a JSON object"), (4, "`workspaceId`"), (5, "`hyde`")):
        assert f"queries[{place}]: {fault}" in detail
    assert 4 == detail.count("queries[")


def test_names_of_strangers_are_cut() -> None:
    """What a client made up is shown cut, and whatever it is, the answer can be written."""
    with pytest.raises(ParameterInvalid) as refused:
        batch_query({"queries": [{**LEAST, "x\ud800" * 1000: 1}] * 20})
    assert len(json.dumps(refused.value.detail)) < 20_000
    refused.value.detail.encode()
