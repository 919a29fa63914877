"""The module that JavaScript clients import, in a real Node against a real server on the loopback."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import create_app
from tests import rig
from tests.test_docs import blocks
from tests.test_passages import NO_USAGE, usage_rows
from tests.test_paths import Peer, on_sqlite, serving

MODULE = Path(__file__).parent.parent / "deploy/js/search.js"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="there is no Node here")


@pytest.fixture
async def peer(store: rig.Store) -> AsyncIterator[Peer]:
    """A server on a store with two turns that say okapi."""
    for session_id in ("chat-a", "chat-b"):
        await store.turn(session_id, prompt=None, text="An okapi.")
    async with serving(create_app(rig.config_for(store))) as peer:
        yield peer


async def run(port: int, script: str, token: str = rig.TOKEN) -> Any:
    """What a script tells: it has a `client`, and says with `tell(…)` what is to be looked at."""
    to = json.dumps({"url": f"http://127.0.0.1:{port}/", "token": token, "workspaceId": "default"})
    whole = f"""
        import {{ connect, SidecarError }} from {json.dumps(MODULE.as_uri())};
        const client = connect({to});
        const tell = (told) => console.log(JSON.stringify(told));
        {script}
    """
    process = await asyncio.create_subprocess_exec(
        NODE or "", "--input-type=module", "-", stdin=-1, stdout=-1, stderr=-1
    )
    async with asyncio.timeout(30):
        told, errors = await process.communicate(whole.encode())
    assert (0, b"") == (process.returncode, errors)
    return json.loads(told)


@on_sqlite
async def test_one_request_however_it_is_read(store: rig.Store, peer: Peer) -> None:
    """Hits are iterated as they are; awaited afterwards, the same search gives its usage without a second request."""
    hits, again, answer = await run(
        peer.port,
        """
        const search = client.search({ q: "okapi", limit: 2 });
        const hits = [], again = [];
        for await (const hit of search) hits.push(hit);
        for await (const hit of search) again.push(hit);
        const { usage, sessionId, availability, results } = await search;
        tell([hits, again, { usage, sessionId, availability, results }]);
        """,
    )
    assert {"chat-a", "chat-b"} == {hit["citation"]["session_id"] for hit in hits}
    assert hits == again == answer["results"]
    assert (NO_USAGE, None, True) == (answer["usage"], answer["sessionId"], answer["availability"]["complete"])
    assert [("operator", "/v1/search", "none")] == await usage_rows(store)


@on_sqlite
async def test_nothing_is_sent_before_it_is_asked_for(store: rig.Store, peer: Peer) -> None:
    """A search that is neither iterated nor awaited costs nothing."""
    assert "made" == await run(peer.port, 'client.search({ q: "okapi" }); tell("made");')
    assert [] == await usage_rows(store)


@on_sqlite
async def test_refusals_are_errors(peer: Peer) -> None:
    """A problem becomes an error with its code, status and detail, iterated and awaited alike; so does a batch's."""
    told = await run(
        peer.port,
        """
        const told = [];
        const caught = (error) => {
          const { code, status, detail } = error;
          told.push([error instanceof SidecarError && error instanceof Error, code, status, detail === error.message]);
        };
        const search = client.search({ q: "okapi", limit: 0 });
        try { for await (const hit of search) told.push(hit); } catch (error) { caught(error); }
        await search.then((answer) => told.push(answer), caught);
        await client.search({ q: "okapi", workspaceId: "other" }).then(tell, caught);
        await client.searchMany([]).catch(caught);
        tell(told);
        """,
    )
    bad, foreign = [True, "parameter_invalid", 400, True], [True, "workspace_not_found", 404, True]
    assert [bad, bad, foreign, bad] == told


@on_sqlite
@pytest.mark.parametrize("body", ["<html>", "null", '"x"', "[]"])
async def test_a_refusal_of_another_server(body: str, peer: Peer) -> None:
    """What a proxy on the way answers is an error of the same kind, whatever its body is."""
    told = await run(
        peer.port,
        f"""
        globalThis.fetch = async () => new Response({json.dumps(body)}, {{ status: 502 }});
        await client.search({{ q: "okapi" }}).then(tell, (error) => tell([error.name, error.code, error.status]));
        """,
    )
    assert ["SidecarError", "unknown", 502] == told


@on_sqlite
async def test_a_wrong_token(peer: Peer) -> None:
    """Whoever has no valid token reads so."""
    told = await run(
        peer.port, 'await client.search({ q: "okapi" }).then(tell, (error) => tell(error.code));', "wrong-token"
    )
    assert "unauthorized" == told


@on_sqlite
async def test_many_searches(store: rig.Store, peer: Peer) -> None:
    """One request for many inputs; the items stand in their order, each an answer or an error."""
    items = await run(
        peer.port,
        """
        const inputs = [{ q: "okapi" }, { q: "okapi", documentId: "chat-none" }, { q: "giraffe" }];
        tell(await client.searchMany(inputs, { concurrency: 2 }));
        """,
    )
    assert [True, False, True] == [item["ok"] for item in items]
    assert [2, 0] == [len(item["data"]["results"]) for item in items if item["ok"]]
    assert "INVALID_SEARCH_SCOPE" == items[1]["error"]["code"]
    assert [("operator", "/v1/search/batch", "none")] * 2 == await usage_rows(store)


@on_sqlite
async def test_a_search_is_given_up(peer: Peer) -> None:
    """An abort signal goes through to the request."""
    told = await run(
        peer.port,
        """
        const signal = AbortSignal.abort();
        const names = [];
        await client.search({ q: "okapi" }, { signal }).then(tell, (error) => names.push(error.name));
        await client.searchMany([{ q: "okapi" }], { signal }).catch((error) => names.push(error.name));
        tell(names);
        """,
    )
    assert ["AbortError", "AbortError"] == told


def test_it_needs_nothing() -> None:
    """No import, and nothing of Node: a page can load it as it is."""
    module = MODULE.read_text("utf-8")
    assert not any(word in module for word in ("import ", "require(", "process.", "node:"))


@on_sqlite
async def test_the_example_of_the_readme(store: rig.Store, tmp_path: Path) -> None:
    """It runs as it stands, beside a copy of the module."""
    (example,) = [each for each in blocks("js") if "search.js" in each]
    await store.turn("chat-trip", prompt=None, text="The hotel is booked.")
    async with serving(create_app(rig.config_for(store))) as peer:
        shutil.copy(MODULE, tmp_path)
        (tmp_path / "package.json").write_text('{"type": "module"}', "utf-8")
        script = example.replace("http://127.0.0.1:8765", f"http://127.0.0.1:{peer.port}")
        (tmp_path / "example.js").write_text(f"const token = {json.dumps(rig.TOKEN)};\n{script}", "utf-8")
        process = await asyncio.create_subprocess_exec(NODE or "", "example.js", cwd=tmp_path, stdout=-1, stderr=-1)
        told, errors = await process.communicate()
    assert (0, b"", b"The hotel is booked. chat-trip\n") == (process.returncode, errors, told)
