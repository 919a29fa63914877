"""Pages of a search while much is hidden and things change between them, and what of a turn is no text to be found."""

import base64
from pathlib import Path

import httpx

from sidecar.demo.steps import REASONING, TOOL_CALL
from tests import rig
from tests.test_history import read
from tests.test_search import every_match, found, narrowed, operator, retired, search


async def test_pages_are_full_although_much_is_hidden(
    store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path
) -> None:
    """What may not be seen is left out before a page is cut, of searches as of windows."""
    token, tokens = "alice-token-0123456789", tmp_path / "tokens.toml"
    tokens.write_text(narrowed(token, "alice"))
    sidecar, operators = await open_sidecar(store, token=token, tokens_file=tokens), await open_sidecar(store)
    seen = []
    for number in range(8):
        await store.turn("chat-a", prompt=None, text="zebra", owner="bob")
        seen.append(await store.turn("chat-a", prompt=None, text=f"zebra {number}", owner="alice"))
        incognito = [operator("zebra", incognito=True)]
        await store.turn("chat-a", prompt=None, history=incognito, text="zebra", owner="alice")
        await store.turn("chat-gone", prompt=None, text="zebra", owner="alice")
    await retired(operators, "chat-gone")
    await store.turn("chat-gone", prompt=None, text="zebra", owner="alice")

    sizes, matches = [], []
    after: rig.Json = {}
    while after.get("after", "") is not None:
        page = await search(sidecar, "zebra", limit=3, **after)
        sizes.append(len(page["matches"]))
        matches += [each["turn_public_id"] for each in page["matches"]]
        after = {"after": page["pagination"]["next_after"]}
    assert ([3, 3, 2], seen[::-1]) == (sizes, matches)
    newest = await read(sidecar, limit=3)
    older = await read(sidecar, limit=3, before_position=newest["pagination"]["before_position"])
    assert seen[2:] == [turn["public_id"] for turn in [*older["turns"], *newest["turns"]]]


async def test_each_page_shows_what_is_visible_then(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Between two pages sessions are retired and cleared, and turns deleted and saved: the rest follows, each once."""
    turns = [await store.turn(f"chat-{number % 4}", prompt=None, text=f"zebra {number}") for number in range(16)]
    first = await search(sidecar, "zebra", limit=4)
    assert turns[:11:-1] == [each["turn_public_id"] for each in first["matches"]]
    await retired(sidecar, "chat-0")
    await retired(sidecar, "chat-1", retire="false")
    await store.delete(turns[7])
    await store.turn("chat-1", prompt=None, text="zebra late", task_id=turns[5])
    await store.turn("chat-2", prompt=None, text="zebra new")
    await store.turn("chat-3", prompt=None, text="a heron now", task_id=turns[3])
    rest = await found(sidecar, "zebra", limit=2, after=first["pagination"]["next_after"])
    assert [turns[number] for number in (11, 10, 6, 2)] == [turn for turn, _ in rest]


async def test_what_is_no_text_is_not_found(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Reasoning, tool calls and their output, files and their names, names of artifacts, metadata: none is searched."""
    encoded = base64.b64encode(b"walrus").decode()
    call = {"toolCallId": "c1", "name": "walrus", "phase": "completed", "args": "walrus", "result": "walrus"}
    files = [
        {"raw": encoded, "filename": "walrus.txt", "mediaType": "text/plain"},
        {"url": "https://walrus.example/walrus", "filename": "walrus"},
        {"data": {"walrus": "walrus"}, "metadata": {"walrus": "walrus"}},
    ]
    task_id = await store.save(
        {
            "id": "task-1",
            "contextId": "chat-a",
            "status": {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-05T09:00:00Z"},
            "artifacts": [
                {"artifactId": "walrus", "name": "walrus", "description": "walrus", "parts": [*files, {"text": "done"}]}
            ],
            "history": [
                {"messageId": "walrus", "role": "ROLE_USER", "parts": [*files, {"text": "go"}]},
                {"messageId": "m1", "role": "ROLE_AGENT", "metadata": {TOOL_CALL: call}},
                {"messageId": "m2", "role": "ROLE_AGENT", "parts": [{"data": call}, {"text": "walrus"}]},
                {
                    "messageId": "m3",
                    "role": "ROLE_AGENT",
                    "parts": [{"data": {"text": "walrus"}, "metadata": {"mimeType": REASONING}}],
                },
            ],
            "metadata": {"walrus": "walrus"},
        }
    )
    assert [] == await found(sidecar, "walrus")
    assert [] == await found(sidecar, encoded)
    assert [(task_id, "content")] == await found(sidecar, "done")


async def test_a_picture_without_words(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A prompt of a picture alone has no text: the turn is the user's, and its answer is found."""
    picture = {"raw": base64.b64encode(bytes(100)).decode(), "mediaType": "image/png"}
    prompt = {"messageId": "m", "role": "ROLE_USER", "parts": [picture]}
    task_id = await store.turn("chat-a", prompt=None, history=[prompt], text="A zebra.")
    assert [(task_id, "content")] == await found(sidecar, "zebra")
    assert [] == await found(sidecar, "png")
    answer = await read(sidecar)
    assert ("user", None, None) == (
        answer["turns"][0]["role"],
        answer["turns"][0].get("prompt"),
        answer["conversation"]["title"],
    )


async def test_text_stays_text(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Markup is neither taken for markup nor escaped, in excerpts, titles and windows."""
    text = "<script>alert(1)</script> &amp; zebra \u202e"
    await store.turn("chat-a", prompt=text, text=text)
    matches = await every_match(sidecar, "zebra")
    assert [(text, text)] * 2 == [(each["excerpt"], each["title"]) for each in matches if each["field"] != "title"]
    (turn,) = (await read(sidecar))["turns"]
    assert (text, text) == (turn["prompt"], turn["content"])
