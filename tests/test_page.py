"""The console page over HTTP: which files are public, how they are answered, and that nothing else became so."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from sidecar import auth, console, page
from sidecar.app import create_app
from sidecar.config import Config
from tests import rig

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "sidecar" / "console"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PATHS = sorted(console.FILES)


@pytest.fixture
async def client(tmp_path: Path) -> httpx.AsyncClient:
    """Without a token, on a store that is not there: the page needs neither."""
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/none.db", token=rig.TOKEN))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


def test_public_are_these_files_alone() -> None:
    """Every style and script of the folder, the page itself, and no other file of it."""
    names = {file.name for file in FOLDER.iterdir() if file.suffix in TYPES}
    assert names == {file.name for file in console.FILES.values()}
    assert {"/", *(f"/console/{name}" for name in names - {"index.html"})} == set(console.FILES)
    assert auth.HEALTH | {"/openapi.json", "/docs"} | set(console.FILES) == auth.PUBLIC


@pytest.mark.parametrize("path", PATHS)
async def test_files(path: str, client: httpx.AsyncClient) -> None:
    """Each file as it is, with its type and a policy under which nothing foreign and nothing inline runs."""
    answer = await client.get(path)
    file = console.FILES[path]
    assert (200, file.read_bytes()) == (answer.status_code, answer.content)
    assert f"{TYPES[file.suffix]}; charset=utf-8" == answer.headers["content-type"]
    assert page.CSP == answer.headers["content-security-policy"]
    assert "no-referrer" == answer.headers["referrer-policy"]
    assert "nosniff" == answer.headers["x-content-type-options"]
    assert "no-cache" == answer.headers["cache-control"]
    head = await client.head(path)
    assert (200, b"", answer.headers["etag"]) == (head.status_code, head.content, head.headers["etag"])


@pytest.mark.parametrize("path", PATHS)
async def test_files_are_revalidated(path: str, client: httpx.AsyncClient) -> None:
    """A browser that has the file is told so; one that has another is given it."""
    etag = (await client.get(path)).headers["etag"]
    same = await client.get(path, headers={"If-None-Match": f'"other", {etag}'})
    assert (304, b"", etag) == (same.status_code, same.content, same.headers["etag"])
    assert page.CSP == same.headers["content-security-policy"]
    assert 200 == (await client.get(path, headers={"If-None-Match": '"other"'})).status_code


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/console",
        "/console/",
        "/console/index.html",
        "/console/__init__.py",
        "/console/none.js",
        "/console/app.js/",
        "/Console/app.js",
        "/console/%2e%2e/app.py",
        "/console/..%2fapp.py",
    ],
)
async def test_no_other_path_is_public(path: str, client: httpx.AsyncClient) -> None:
    """What only resembles a path of the page asks for a token."""
    assert 401 == (await client.get(path)).status_code


async def test_the_page_cannot_be_written(client: httpx.AsyncClient) -> None:
    """Only GET and HEAD are taken."""
    for path in PATHS:
        for method in ("POST", "PUT", "DELETE"):
            assert 405 == (await client.request(method, path)).status_code


async def test_a_foreign_host_is_refused(client: httpx.AsyncClient) -> None:
    """A name that was rebound to us gets no page, which would then ask for the token."""
    assert 400 == (await client.get("/", headers={"Host": "evil.example"})).status_code


async def test_below_a_mount_point(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """An agent may mount the sidecar: what the page names is relative, and found there."""
    sidecar = create_app(Config(database_url=f"sqlite:///{tmp_path}/none.db", token=rig.TOKEN))
    app = Starlette(routes=[Mount("/deep/sidecar", sidecar)])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/deep/sidecar/") as mounted:
        html = (await mounted.get("")).text
        named = re.findall(r'(?:href|src)="(?!data:)([^"]+)"', html)
        assert {"console/app.css", "console/app.js", "docs"} == set(named)
        for name in named:
            assert 200 == (await mounted.get(name)).status_code


async def test_the_page_tells_its_scripts_the_workspace(tmp_path: Path) -> None:
    """Search asks in the workspace of the configuration; a browser that has the page of another one is given it."""
    pages = []
    for workspace in ("default", "acme.w-1"):
        app = create_app(Config(database_url=f"sqlite:///{tmp_path}/none.db", token=rig.TOKEN, workspace=workspace))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            pages.append(await client.get("/"))
        assert f'<meta name="workspace" content="{workspace}">' in pages[-1].text
    assert pages[0].headers["etag"] != pages[1].headers["etag"]


def test_scripts_are_modules_of_this_folder() -> None:
    """Every import is a file that is served, and each file of ours opens with its job."""
    for file in FOLDER.glob("*.js"):
        source = file.read_text("utf-8")
        for name in re.findall(r'^(?:import|export) .*from "(.+)";$', source, re.M):
            assert f"/console/{name.removeprefix('./')}" in console.FILES, f"{file.name} imports {name}"
        assert source.startswith(("// ", "/**\n")), file.name


def test_no_markup_is_made_from_text() -> None:
    """No file builds markup, code, inline style or an inline handler from a string."""
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.style\b|cssText|srcdoc"
    for file in FOLDER.glob("*.js"):
        assert not re.search(forbidden, file.read_text("utf-8")), file.name
    html = (FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|\sstyle=|\son\w+=|https?://(?!www\.w3\.org)", html)


def test_the_page_stays_small() -> None:
    """A page that is read without a build step is small enough to be read."""
    assert 100_000 > sum(file.stat().st_size for file in console.FILES.values())


def test_the_wheel_holds_the_page(tmp_path: Path) -> None:
    """What is installed serves the same files."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout + done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert {f"sidecar/console/{file.name}" for file in console.FILES.values()} <= set(wheel.namelist())
