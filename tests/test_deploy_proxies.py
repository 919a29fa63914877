"""Requests through a real nginx and a real Caddy with our files: what they may not change, and not hold back."""

import asyncio
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from sidecar.app import create_app
from tests import rig
from tests.model_server import ModelServer, running_model, stalls
from tests.postgres import free_port
from tests.test_deploy import DEPLOY, PATIENCE_SECONDS, eventually, found, is_open, run
from tests.test_paths import serving

HOST = "sessions.example"
CERTIFICATE = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1")
NGINX = """
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    include {folder}/site;
}}
"""
CADDY = """
{{
    admin off
    auto_https disable_redirects
}}
"""


def nginx(site: str, port: int, folder: Path) -> list[str]:
    """The command that runs nginx with our server, on another port and with a certificate that is there."""
    site = site.replace("listen 443", f"listen 127.0.0.1:{port}").replace(f"/etc/ssl/{HOST}", str(folder))
    (folder / "site").write_text(site)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return [found("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(site: str, port: int, folder: Path) -> list[str]:
    """The same for Caddy, which must not ask for a certificate here."""
    head = f"https://{HOST}:{port} {{\n\tbind 127.0.0.1\n\ttls {folder}/fullchain.pem {folder}/privkey.pem"
    (folder / "Caddyfile").write_text(CADDY.format() + site.replace(f"{HOST} {{", head))
    return [found("caddy"), "run", "--config", str(folder / "Caddyfile")]


@asynccontextmanager
async def proxying(command: list[str], port: int, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the running proxy."""

    async def named(request: httpx.Request) -> None:
        request.extensions["sni_hostname"] = HOST

    context = ssl.create_default_context(cafile=folder / "fullchain.pem")
    headers = {"Authorization": f"Bearer {rig.TOKEN}", "Host": f"{HOST}:{port}"}
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=subprocess.DEVNULL)
    try:
        await asyncio.to_thread(eventually, lambda: is_open(port))
        async with httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}",
            headers=headers,
            verify=context,
            timeout=PATIENCE_SECONDS,
            event_hooks={"request": [named]},
        ) as client:
            yield client
    finally:
        process.kill()
        await process.wait()


@dataclass(frozen=True)
class Behind:
    """A sidecar that is reached through a proxy."""

    client: httpx.AsyncClient
    store: rig.Store
    model: ModelServer


@pytest.fixture(params=[(nginx, "nginx.conf"), (caddy, "Caddyfile")], ids=["nginx", "caddy"])
async def proxied(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Behind]:
    start, file = request.param
    names = ("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}")
    run(found("openssl"), *CERTIFICATE, *names, "-keyout", "privkey.pem", "-out", "fullchain.pem", cwd=tmp_path)
    async with rig.sqlite_store(tmp_path / "tasks.db") as store, running_model() as model:
        await store.tasks.initialize()
        app = create_app(rig.config_for(store, allowed_hosts=(HOST,), **model.settings))
        async with serving(app) as peer:
            site, port = (DEPLOY / "proxy" / file).read_text("utf-8"), free_port()
            command = start(site.replace("127.0.0.1:8765", f"127.0.0.1:{peer.port}"), port, tmp_path)
            async with proxying(command, port, tmp_path) as client:
                yield Behind(client, store, model)


async def test_a_proxy_changes_no_request(proxied: Behind) -> None:
    """Ids keep their `%2F`, the page's own origin is accepted, and the bounds are the sidecar's."""
    client = proxied.client
    await proxied.store.turn("chat-a/b//c%2F../d", text="Found.")
    turns = await client.get("/api/chat/sessions/chat-a%2Fb%2F%2Fc%252F..%2Fd/turns")
    assert ["Found."] == [turn["text"] for turn in turns.json()["turns"]]
    assert "max-age=31536000" == turns.headers["strict-transport-security"]
    own = {"Origin": f"https://{client.headers['host']}"}
    assert 200 == (await client.get("/api/chat/sessions", headers=own)).status_code
    about = {"q": "找" * 7_000, "workspaceId": "default"}
    assert 200 == (await client.get("/v1/search", params=about)).status_code
    assert 200 == (await client.post("/v1/search/batch", json={"queries": [about] * 20})).status_code
    assert "parameter_invalid" == (await client.get("/v1/search", params={"q": "?"})).json()["code"]


async def test_a_proxy_holds_no_event_back(proxied: Behind) -> None:
    """The first events are there while the model still thinks."""
    await proxied.store.turn("chat-a", text="Nine to five.", prompt=None)
    proxied.model.will(stalls("From nine "))
    query = {"q": "nine five", "workspaceId": "default"}
    async with proxied.client.stream("GET", "/v1/search/chat/stream", params=query) as response:
        names = (line async for line in response.aiter_lines() if line.startswith("event: "))
        assert ["event: passages", "event: delta"] == [await anext(names), await anext(names)]
