"""The searches as tools of a model (seeds 000 and 002): the routes' own services and envelopes; it serves nothing."""

from sidecar.offered import Json, Offered, Runtime, text_schema, tool
from sidecar.search.queries import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_QUERY_BYTES,
    history_arguments,
    search_arguments,
)
from sidecar.search.recall import Recall
from sidecar.search.recall_queries import DEFAULT_HITS, MAX_HITS, SPEAKERS, recall_arguments, run_of
from sidecar.search.service import Search

_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
_SEARCH = tool(
    "session_search",
    "Search conversations",
    "Find turns of past conversations whose prompt, answer, interjections or title hold all keywords, newest first. "
    "English words match by their stem, Chinese by its words; no phrases, no parts of words. Each match names a "
    "conversation and a turn for session_read.",
    ("query",),
    {
        "query": text_schema(f"Keywords, at most {MAX_QUERY_BYTES} bytes in UTF-8; one field must hold them all."),
        "archived": {"type": "string", "enum": ["exclude", "include", "only"], "default": "exclude"},
        "include_auxiliary": {
            "type": "boolean",
            "default": False,
            "description": "Also search side and subagent conversations.",
        },
        "limit": _LIMIT,
        "after": text_schema("pagination.next_after of the answer before, with the same other arguments."),
    },
)
_READ = tool(
    "session_read",
    "Read a conversation",
    "Read a window of one conversation, in ascending order: its newest turns, those around a turn, or those before or "
    "after a position. Send at most one of around_turn_id, before_position and after_position.",
    ("session_id",),
    {
        "session_id": text_schema("conversation_public_id of a match."),
        "around_turn_id": text_schema("turn_public_id of a match, to read what stands around it."),
        "limit": _LIMIT,
        "before_position": {"type": "integer", "minimum": 1, "description": "Only turns before this one."},
        "after_position": {"type": "integer", "minimum": 0, "description": "Only turns after this one."},
        "include_execution": {
            "type": "boolean",
            "default": False,
            "description": "Add how the selected turn was or is being worked on: its rounds and tool calls.",
        },
        "execution_before": text_schema("execution.pagination.next_before of the answer before, for older rounds."),
        "execution_prefix": text_schema("A key of execution.branches; leave it out for the main thread."),
    },
)
_RECALL = tool(
    "history_search",
    "Search your history",
    "Find messages of your past conversations that are not before you any more, those that fit best first, each with "
    "its speaker and time and what was said just before and after it. Any word may match; more and rarer ones count "
    "more. Each search is recorded, and a run is shown a limited number of messages: search_budget_exhausted says "
    "that there are no more.",
    ("query",),
    {
        "query": text_schema(f"Words to look for, at most {MAX_QUERY_BYTES} bytes in UTF-8."),
        "speaker": {
            "type": "string",
            "enum": [*SPEAKERS],
            "default": SPEAKERS[0],
            "description": "Whose messages: the requester's, or your own answers.",
        },
        "since": text_schema("Only messages of this time or later, in RFC 3339 with a zone.", format="date-time"),
        "until": text_schema("Only messages before this time.", format="date-time"),
        "limit": {
            "type": "integer",
            "minimum": 1,
            "default": DEFAULT_HITS,
            "description": f"How many hits at most; more than {MAX_HITS} is as {MAX_HITS}.",
        },
        "conversation_public_id": text_schema("Only this conversation."),
    },
    idempotent=False,
)


def offered(search: Search, recall: Recall) -> list[Offered]:
    """The tools over these services; each answers for the owners of whoever calls it."""

    async def find(given: Json, runtime: Runtime) -> Json:
        return await search.search(search_arguments(given), runtime.principal.owners)

    async def read(given: Json, runtime: Runtime) -> Json:
        return await search.read(history_arguments(given), runtime.principal.owners)

    async def remember(given: Json, runtime: Runtime) -> Json:
        query, run = recall_arguments(given), run_of(runtime.headers, runtime.meta)
        return await recall.search(query, run, runtime.principal, runtime.request_id)

    return [Offered(_SEARCH, find), Offered(_READ, read), Offered(_RECALL, remember)]
