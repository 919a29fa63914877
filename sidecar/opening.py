"""For producers: shapes the operator's message that opens a task; imports no SDK, keeps no payload, never raises."""

import logging
import re
from typing import Any

MAX_TEXT = 16_000  # characters, over all parts together (seed 003)
MAX_PARTS = 64
MAX_NAME = 255  # characters of an id, a file name, a media type or a metadata string
TRANSCRIPT_METADATA = ("incognito", "hidden", "hitl_resume", "origin")

_log = logging.getLogger(__name__)
_LINK = re.compile(r"https?://[^\s\x00-\x1f\x7f]{1,2040}", re.IGNORECASE)
_DATA_URL = re.compile(r"[\s\x00-\x1f]*data:(?P<type>[^;,]*)(?P<options>[^,]*),?", re.IGNORECASE)


def opening_message(message: Any, *, context_id: str | None = None, task_id: str | None = None) -> Any | None:
    """The transcript's view of the message that opens a task, for the history of the first `Task` (seed 003).

    The SDK drops the request message when an agent enqueues its own `Task`, so the agent puts it there, once:

        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            if context.current_task is None:
                task = Task(
                    id=context.task_id,
                    context_id=context.context_id,
                    status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
                )
                if opening := opening_message(context.message):
                    task.history.append(opening)
                await event_queue.enqueue_event(task)

    A resumed task (`current_task` is set) gets no second one: the SDK appends that message itself, and would drop
    it if a `Task` came first.

    Args:
        message: `RequestContext.message` of a2a-sdk 1.x. It is only read.
        context_id: Replaces the message's own context id, when given.
        task_id: Replaces the message's own task id, when given.

    Returns:
        A new ROLE_USER message of the same type: ids, the metadata of `TRANSCRIPT_METADATA` as booleans or short
        strings, the text (`display` in its place, where the client set it; at most `MAX_TEXT` characters), and for
        each attachment its name, type and http(s) link, with `omittedBytes` for a payload that came inline.
        A `hidden` message has no parts. At most `MAX_PARTS` parts are read.

        None, when there is nothing to record: a server-fired turn (`origin`), or a message that cannot be shaped
        (another type, an id that is no valid text). The latter is logged, without any of its content.
    """
    try:
        return _opening(message, context_id, task_id)
    except Exception as error:  # the turn must run, whatever the client sent
        _log.warning("opening message not recorded: %s", type(error).__name__)
        return None


def _opening(message: Any, context_id: str | None, task_id: str | None) -> Any | None:
    if type(message).DESCRIPTOR.full_name != "lf.a2a.v1.Message":
        raise TypeError
    kept = _kept_metadata(message.metadata)
    if kept.get("origin"):
        return None
    opening = type(message)(
        message_id=message.message_id[:MAX_NAME],
        context_id=(context_id or message.context_id)[:MAX_NAME],
        task_id=(task_id or message.task_id)[:MAX_NAME],
        role="ROLE_USER",
    )
    opening.metadata.update(kept)
    if not kept.get("hidden"):
        _add_parts(opening, message)
    return opening


def _kept_metadata(metadata: Any) -> dict[str, bool | str]:
    values = {key: _plain(metadata, key, MAX_NAME) for key in TRANSCRIPT_METADATA}
    return {key: value for key, value in values.items() if value is not None}


def _plain(metadata: Any, key: str, max_length: int) -> bool | str | None:
    """One value of a Struct as text or as its truth; a list or object is true, as in a browser; null is absent."""
    if key not in metadata.fields:  # reading an absent key would add it to the live request
        return None
    value = metadata.fields[key]
    match value.WhichOneof("kind"):
        case "string_value":
            return str(value.string_value[:max_length])
        case "bool_value" | "number_value" as kind:
            return bool(getattr(value, kind))
        case "struct_value" | "list_value":
            return True
    return None


def _add_parts(opening: Any, message: Any) -> None:
    display = _plain(message.metadata, "display", MAX_TEXT)
    replaced = isinstance(display, str)
    if replaced and display:
        opening.parts.add(text=display)
    room = MAX_TEXT
    for part in message.parts[:MAX_PARTS]:
        if part.WhichOneof("content") != "text":
            _add_shell(opening, part)
        elif not replaced and (text := part.text[:room]):
            opening.parts.add(text=text)
            room -= len(text)


def _add_shell(opening: Any, part: Any) -> None:
    data_url = _DATA_URL.match(part.url)
    media_type = part.media_type or (data_url["type"] if data_url else "")
    shell = opening.parts.add(
        # never unset: the SDK cannot answer a 0.3 client with a part that has no content
        url=part.url if _LINK.fullmatch(part.url) else "",
        filename=part.filename[:MAX_NAME],
        media_type=media_type[:MAX_NAME],
    )
    if part.HasField("raw"):
        shell.metadata["omittedBytes"] = len(part.raw)
    elif part.HasField("data"):
        shell.metadata["omittedBytes"] = part.data.ByteSize()
    elif data_url:
        shell.metadata["omittedBytes"] = _payload_size(data_url)


def _payload_size(data_url: re.Match[str]) -> int:
    """Bytes that a base64 data: URL decodes to; for any other, the characters of its payload as sent."""
    payload = data_url.string[data_url.end() :]
    if data_url["options"].lower().endswith(";base64"):
        return len(payload.rstrip("=")) * 3 // 4
    return len(payload)
