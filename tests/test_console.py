"""The console page in Debian's Chromium, against the servers of `make demo` and against stores of our own."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # it ships no types
from playwright.async_api import Browser, Locator, Page, Request, Route, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from sidecar.app import create_app
from sidecar.demo.steps import STEER_CONSUMED as STEER
from sidecar.demo.steps import TOOL_CALL
from tests import rig
from tests.browser import chromium, demo_in, page_in, profile, send, served
from tests.test_demo import Demo

pytestmark = pytest.mark.asyncio(loop_scope="module")

Scheme = Literal["light", "dark"]
SCREENSHOTS = Path(__file__).parent.parent / "deploy" / "screenshots"
MOST_SCREENSHOT_BYTES = 200_000
# what may take two polls of the page on a busy machine
PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AXE: dict[str, Any] = {"runOnly": WCAG, "rules": {"target-size": {"enabled": True}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One demo for the tests that only read."""
    with demo_in(tmp_path_factory.mktemp("demo")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def store(tmp_path: Path) -> AsyncIterator[rig.Store]:
    """A store of the SDK's, still empty."""
    async with rig.sqlite_store(tmp_path / "tasks.db") as opened:
        await opened.tasks.initialize()
        yield opened


@asynccontextmanager
async def console(browser: Browser, store: rig.Store, **settings: Any) -> AsyncIterator[Page]:
    """The page on a store, signed in, with a clock that a test may wind forward."""
    async with served(create_app(rig.config_for(store, **settings))) as url, profile(browser) as context:
        page = await context.new_page()
        await page.clock.install()
        await page.goto(f"{url}/#token={rig.TOKEN}")
        yield page


def row(page: Page, session_id: str) -> Locator:
    """The row of a session in either list."""
    return page.locator(f'#index li[data-key="{session_id}"]')


def section(page: Page, name: str) -> Locator:
    return page.get_by_role("list", name=re.compile(name))


async def keys(locator: Locator) -> list[str]:
    """The session ids of a list, from top to bottom."""
    found: list[str] = await locator.locator("li").evaluate_all("items => items.map((item) => item.dataset.key)")
    return found


def viewer(page: Page) -> Locator:
    return page.get_by_role("region", name="Session", exact=True)


def action(page: Page, name: str) -> Locator:
    return viewer(page).get_by_role("button", name=name, exact=True)


async def test_a_day_with_the_page(browser: Browser, tmp_path: Path) -> None:
    """Sign in, see who waits, answer them in the console, search, open the hit, and retire what runs for good."""
    with demo_in(tmp_path) as demo:
        url = demo.lines["sidecar"].split()[0]
        token = demo.lines["console"].partition("#token=")[2]
        async with page_in(browser, url) as page:
            await page.clock.install()
            await page.get_by_label("Operator token").fill("a-wrong-token-0123456789")
            await page.keyboard.press("Enter")
            await expect(page.locator("#refused")).to_have_text("Token refused (401)")
            await page.get_by_label("Operator token").fill(token)
            await page.get_by_role("button", name="Sign in").click()

            await expect(page.get_by_role("heading", name="Waiting for you (2)")).to_be_visible()
            assert ["chat-billing-export", "chat-trip-lisbon"] == await keys(section(page, "Waiting"))
            await expect(row(page, "chat-trip-lisbon")).to_contain_text("Plan a long weekend in Lisbon")
            await expect(row(page, "chat-trip-lisbon")).to_contain_text("needs input")
            await row(page, "chat-trip-lisbon").get_by_role("button").click()
            question = page.get_by_role("complementary", name="The agent asks")
            await expect(question).to_contain_text("Which hotel shall I book?")
            await expect(question).to_contain_text("Answer in your console")
            await expect(action(page, "Clear history")).to_be_disabled()

            assert "TASK_STATE_COMPLETED" == send(demo, "Casa do Rio", "chat-trip-lisbon")["status"]["state"]
            await page.clock.fast_forward(4_000)
            await expect(page.get_by_role("heading", name="Waiting for you (1)")).to_be_visible()
            assert ["chat-billing-export"] == await keys(section(page, "Waiting"))
            await expect(page.locator("#waiting-count")).to_have_text("1 session waits for you")
            await expect(viewer(page)).to_contain_text("Carrying on with: Casa do Rio")
            await expect(question).to_be_hidden()

            await page.get_by_role("searchbox").fill("migration plan")
            hit = section(page, "hit").get_by_role("button", name="prompt · turn 1")
            await expect(hit.locator("mark").first).to_have_text("migration")
            await hit.click()
            found = page.locator(".turn.found")
            await expect(found).to_be_in_viewport()
            await expect(found).to_contain_text("Write the migration plan for the orders table.")
            await expect(viewer(page)).to_contain_text("this is a partial answer")

            await action(page, "Retire").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text("2 stored turns will be deleted")
            await expect(dialog).to_contain_text("A turn is running now.")
            await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
            await dialog.get_by_role("button", name="Retire").click()
            await expect(row(page, "chat-migration-watch")).to_have_count(0)
            await asyncio.sleep(2.2)  # two more saves of the demo's producer
            await page.reload()
            await expect(row(page, "chat-load-test")).to_be_visible()
            await expect(row(page, "chat-migration-watch")).to_have_count(0)
            await expect(page.locator("#scope")).to_contain_text("11 sessions")


async def test_with_the_keyboard_alone(browser: Browser, demo: Demo) -> None:
    """Sign in, search, open, come back, choose, open and leave a dialog: no pointer is needed."""
    async with page_in(browser, demo.lines["sidecar"].split()[0]) as page:

        async def press(*pressed: str) -> None:
            for each in pressed:
                await page.keyboard.press(each)

        await page.keyboard.type(demo.lines["console"].partition("#token=")[2])
        await press("Enter")
        await expect(section(page, "Waiting").get_by_role("button").first).to_be_visible()
        await press("/")
        await expect(page.get_by_role("searchbox")).to_be_focused()
        await page.keyboard.type("hotel")
        await press("Enter")
        await expect(section(page, "hit").get_by_role("button").first).to_be_focused()
        await press("Enter")
        await expect(page.locator(".turn.found")).to_be_focused()
        await press("Escape")
        await expect(section(page, "hit").get_by_role("button").first).to_be_focused()
        await press("Escape")
        await expect(row(page, "chat-trip-lisbon").get_by_role("button")).to_be_focused()
        await press("Home")
        await expect(row(page, "chat-billing-export").get_by_role("button")).to_be_focused()
        await press("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown")
        await expect(row(page, "chat-migration-watch").get_by_role("button")).to_be_focused()
        await press("Enter")
        await expect(viewer(page).get_by_role("heading", level=2)).to_be_focused()
        for name in ("Copy id", "Copy curl", "Export JSON", "Retire"):  # Clear is disabled
            await press("Tab")
            await expect(action(page, name)).to_be_focused()
        await press("Enter")
        await expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
        await press("Enter")
        await expect(action(page, "Retire")).to_be_focused()
        await press("Escape")
        await expect(row(page, "chat-migration-watch").get_by_role("button")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_accessibility(scheme: Scheme, browser: Browser, demo: Demo) -> None:
    """axe finds nothing in any view, in either colour scheme: WCAG 2.2 AA, its best practices and target sizes."""
    found: dict[str, list[Any]] = {}

    async def look(view: str) -> None:
        results = await Axe().run(page, options=AXE)
        found[view] = [
            (each["id"], [node["html"] for node in each["nodes"]]) for each in results.response["violations"]
        ]

    options = {"color_scheme": scheme, "reduced_motion": "reduce"}
    async with page_in(browser, demo.lines["sidecar"].split()[0], **options) as page:
        await look("sign-in")
        await page.goto(demo.lines["console"])
        await expect(row(page, "chat-trip-lisbon")).to_contain_text("needs input")
        await page.get_by_role("button", name="Select").click()
        await look("list")
        await page.get_by_role("button", name="Done", exact=True).click()
        await row(page, "chat-deploy-canary").get_by_role("button").click()
        await viewer(page).locator("summary").first.click()
        await action(page, "Raw").click()
        await look("viewer")
        await row(page, "chat-trip-lisbon").get_by_role("button").click()
        await expect(page.get_by_role("complementary")).to_be_visible()
        await look("question")
        await action(page, "Retire").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await look("dialog")
        await page.keyboard.press("Escape")
        await page.get_by_role("searchbox").fill("hotel")
        await expect(page.locator("mark")).to_be_visible()
        await look("results")
    assert {view: [] for view in found} == found


HOSTILE = [
    '<img src=x onerror="alert(1)">',
    "</script><script>alert(1)</script>",
    "[click](javascript:alert(1)) javascript:alert(1) data:text/html,<script>alert(1)</script>",
    "<svg onload=alert(1)><style>*{display:none}</style><iframe srcdoc='<script>alert(1)</script>'>",
    "\u202egnp.exe\u202c and \u2066isolated\u2069",
]


async def test_hostile_transcripts(browser: Browser, store: rig.Store) -> None:
    """Whatever a transcript holds is text: nothing runs, nothing is loaded, and what turns text around is visible."""
    marker = {"data": {"items": [{"id": "s", "text": HOSTILE[0]}]}, "metadata": {"mimeType": STEER}}
    call: rig.Json = {TOOL_CALL: {"toolCallId": "c", "name": HOSTILE[1], "phase": "started", "args": HOSTILE[0]}}
    history: list[rig.Json] = [
        {"messageId": "m", "role": "ROLE_AGENT", "parts": [marker]},
        {"messageId": "n", "role": "ROLE_AGENT", "metadata": call},
    ]
    session = "chat-<b>\u202ex"
    await store.turn(session, text="\n".join(HOSTILE), prompt=HOSTILE[0], history=history)
    await store.turn(session, "input-required", text="w" * 1_000_000, prompt=HOSTILE[4], status_text=HOSTILE[1])
    await store.turn("chat-link", text="See https://example.com/a?b=c. Or <https://example.org>.")
    async with console(browser, store) as page:
        await row(page, session).get_by_role("button").click()
        await expect(page.get_by_role("complementary")).to_contain_text(HOSTILE[1])
        await expect(viewer(page)).to_contain_text("Show all 1,000,000 characters")
        await viewer(page).get_by_role("button", name="Show all").click()
        for text in HOSTILE[:4]:
            await expect(viewer(page).locator(".answer").first).to_contain_text(text)
        await expect(viewer(page).get_by_title("U+202E").first).to_be_visible()
        await viewer(page).locator("summary").first.click()
        await action(page, "Raw").first.click()
        await action(page, "Retire").click()
        await expect(page.get_by_role("dialog")).to_contain_text("chat-<b>RLOx")
        await page.keyboard.press("Escape")
        await page.get_by_role("searchbox").fill("alert")
        await expect(page.locator("#results mark").first).to_be_visible()
        await page.keyboard.press("Escape")
        made = await page.locator(
            "img, iframe, svg, script:not([src]), style, a:not([href^=http]):not([href=docs])"
        ).count()
        assert 0 == made
        assert 0 == await page.locator("[onerror], [onload], [style]").count()
        await row(page, "chat-link").get_by_role("button").click()
        links = await viewer(page).get_by_role("link").evaluate_all("all => all.map((link) => [link.href, link.rel])")
        rel = "noreferrer noopener"
        assert [["https://example.com/a?b=c", rel], ["https://example.org/", rel]] == links


async def test_a_second_device(browser: Browser, demo: Demo) -> None:
    """A fresh profile begins empty and shows what the first one had, with the turn that is still being written."""

    async def seen(page: Page) -> tuple[list[str], str]:
        await expect(row(page, "chat-deploy-canary")).to_contain_text("Roll out checkout")
        await row(page, "chat-migration-watch").get_by_role("button").click()
        await expect(viewer(page)).to_contain_text("Still running: this is a partial answer")
        last = viewer(page).locator(".answer").last
        return await keys(section(page, "Waiting")) + await keys(section(page, "Recent")), await last.inner_text()

    async with page_in(browser, demo.lines["console"]) as first:
        rows, partial = await seen(first)
    async with page_in(browser, demo.lines["sidecar"].split()[0]) as second:
        assert [0, 0] == await second.evaluate("[sessionStorage.length, localStorage.length]")
        await second.clock.install()
        await second.goto(demo.lines["console"])
        again, later = await seen(second)
        assert rows == again
        assert later.startswith(partial)
        await asyncio.sleep(1.2)  # the producer's next save
        await second.clock.fast_forward(4_000)
        await expect(viewer(second).locator(".answer").last).not_to_have_text(later)


async def test_the_token_leaves_the_address(browser: Browser, demo: Demo) -> None:
    """A link's token is kept for this tab alone and stands in no address; forgotten, it takes the data with it."""
    url, _, token = demo.lines["console"].partition("#token=")
    async with page_in(browser, demo.lines["console"]) as page:
        await expect(section(page, "Waiting").get_by_role("button").first).to_be_visible()
        assert url == page.url
        assert token in await page.evaluate("JSON.stringify(sessionStorage)")
        assert token not in await page.evaluate("JSON.stringify(localStorage)")
        await page.get_by_role("button", name="Forget token").click()
        await expect(page.get_by_label("Operator token")).to_be_focused()
        assert "{}" == await page.evaluate("JSON.stringify(sessionStorage)")
        assert 0 == await page.locator("#index li").count()


async def test_what_a_turn_shows(browser: Browser, demo: Demo) -> None:
    """Steps are collapsed, interjections stand where they were read, files have names and sizes, JSON is a click."""
    async with page_in(browser, demo.lines["console"]) as page:
        await row(page, "chat-deploy-canary").get_by_role("button").click()
        blocks = viewer(page).locator("article > div > *")
        await expect(blocks).to_have_text(
            [
                re.compile("You.*Roll out checkout 4.2"),
                re.compile("^3 steps"),
                re.compile("You, meanwhile.*Keep it at 25 percent"),
                re.compile("^1 step"),
                re.compile("^Checkout 4.2 runs on 5 percent"),
            ]
        )
        await expect(viewer(page).get_by_text("15 of 60 pods ready")).to_be_hidden()
        await viewer(page).locator("summary").last.click()
        await expect(viewer(page).get_by_text("15 of 60 pods ready")).to_be_visible()
        await action(page, "Raw").click()
        raw = json.loads(await viewer(page).locator("pre").inner_text())
        assert demo.turns("chat-deploy-canary") == [raw]
        await row(page, "chat-invoice-review").get_by_role("button").click()
        files = viewer(page).get_by_role("list", name="Files").get_by_role("listitem")
        await expect(files).to_have_text(
            ["contract.pdf", "march.csv · 27 B", "april.csv · 27 B", re.compile("json · 56 B")]
        )
        await row(page, "chat-backup-restore").get_by_role("button").click()
        await expect(viewer(page).get_by_text("Nothing was changed: try again.").last).to_be_visible()


async def test_copy_and_export(browser: Browser, demo: Demo) -> None:
    """The copied command reads the session without holding the token; the export holds every stored turn."""
    permissions = ["clipboard-read", "clipboard-write"]
    async with page_in(browser, demo.lines["console"], permissions=permissions) as page:
        await row(page, "chat-研究").get_by_role("button").click()
        await action(page, "Copy curl").click()
        await expect(page.get_by_text("Copied")).to_be_visible()
        command = await page.evaluate("navigator.clipboard.readText()")
        url = demo.lines["sidecar"].split()[0]
        path = "/api/chat/sessions/chat-%E7%A0%94%E7%A9%B6/turns"
        await page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject())")
        await page.clock.install()
        await action(page, "Copy curl").click()
        await page.clock.fast_forward(9_000)  # there is time to select it
        await expect(page.locator("#notice")).to_have_text(command)
        assert f"curl -s -H \"Authorization: Bearer $TOKEN\" '{url}{path}'" == command
        async with page.expect_download() as downloading:
            await action(page, "Export JSON").click()
        download = await downloading.value
        assert "chat-研究.json" == download.suggested_filename
        exported = json.loads(Path(await download.path()).read_text("utf-8"))
        assert {"session_id": "chat-研究", "turns": demo.turns("chat-研究")} == exported


async def test_stored_text(browser: Browser, store: rig.Store) -> None:
    """Raw and export are the JSON as it is stored, byte for byte: numbers and escapes keep their spelling."""
    artifacts = r'[ {"parts": [{"text": "a \"{[\\"}], "n": [27.0, 1e2, 12345678901234567890], "\u00e9": "\ud800"} ]'
    cells = {"status": '{"state": "TASK_STATE_COMPLETED"}', "artifacts": artifacts, "history": "[]"}
    for session in ("chat-b", "chat-a", "chat-a"):
        await store.insert_raw(context_id=session, **cells)
    async with console(browser, store) as page:
        await row(page, "chat-a").get_by_role("button").click()
        async with page.expect_download() as downloading:
            await action(page, "Export JSON").click()
        exported = Path(await (await downloading.value).path()).read_text("utf-8")
        await action(page, "Raw").first.click()
        raw = await viewer(page).locator("pre").first.text_content()
    assert raw is not None
    assert f'"artifacts":{artifacts},"history":[]}}' in raw
    assert (2, 1) == (exported.count(f'"artifacts":{artifacts},'), exported.count(raw))
    assert 2 == len(json.loads(exported)["turns"])


async def test_a_growing_turn_keeps_what_is_read(browser: Browser, store: rig.Store) -> None:
    """While an answer grows, what is selected, opened or shown whole stays so."""
    long = "word " * 5_000
    call: rig.Json = {TOOL_CALL: {"toolCallId": "c", "name": "look", "phase": "started", "args": "here"}}
    history: list[rig.Json] = [
        {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "The question?"}]},
        {"messageId": "n", "role": "ROLE_AGENT", "metadata": call},
    ]
    turn = await store.turn("chat-a", "working", prompt=None, text=long, history=history)
    async with console(browser, store) as page:
        await row(page, "chat-a").get_by_role("button").click()
        await viewer(page).get_by_role("button", name="Show all").click()
        await viewer(page).locator("summary").click()
        for block in (".said .text", ".steps li", ".answer"):
            await page.evaluate("(block) => getSelection().selectAllChildren(document.querySelector(block))", block)
            selected = await page.evaluate("String(getSelection())")
            assert selected
            long += f"and https://example.com/{len(long)} "
            await store.turn("chat-a", "working", prompt=None, text=long, history=history, task_id=turn)
            await page.clock.fast_forward(4_000)
            await expect(viewer(page).locator(".answer")).to_have_text(long)
            assert (await page.evaluate("String(getSelection())")).startswith(selected)
            await expect(viewer(page).locator(".steps li")).to_be_visible()


async def test_one_question_at_a_time(browser: Browser, store: rig.Store) -> None:
    """Two actions whose dialogs wait for the sidecar open one: who confirms it does not confirm the other."""
    await store.turn("chat-a")
    async with console(browser, store) as page:
        await row(page, "chat-a").get_by_role("button").click()
        await expect(action(page, "Clear history")).to_be_enabled()
        clicks = "for (const each of document.querySelectorAll('.actions .danger')) each.click()"
        async with page.expect_response(re.compile("chat-a$")), page.expect_response(re.compile("chat-a$")):
            await page.evaluate(clicks)
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_be_visible()
        asked = await dialog.locator(".danger").inner_text()
        await dialog.locator(".danger").click()
        await expect(page.locator("#notice")).to_contain_text("1 turn deleted")
    retired = await store.raw("SELECT session_id FROM tasks_session_tombstones")
    assert (asked == "Retire") == bool(retired)


async def test_a_deletion_that_is_answered_late(browser: Browser, store: rig.Store) -> None:
    """A session that was opened before the answer came stays open."""
    for name in "ab":
        await store.turn(f"chat-{name}", text=f"Answer {name}")
    answered = asyncio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == "DELETE":
            await answered.wait()
        await route.continue_()

    async with console(browser, store) as page:
        await page.route("**/chat-a?*", hold)
        await row(page, "chat-a").get_by_role("button").click()
        await action(page, "Retire").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retire").click()
        await row(page, "chat-b").get_by_role("button").click()
        answered.set()
        await expect(page.locator("#notice")).to_contain_text("Retired: 1 turn")
        await expect(row(page, "chat-a")).to_have_count(0)
        await expect(viewer(page)).to_contain_text("Answer b")


async def test_signing_in(browser: Browser, store: rig.Store) -> None:
    """What no header can carry is refused as a token, and a second press while the first is answered does nothing."""
    await store.turn("chat-a")
    async with served(create_app(rig.config_for(store))) as url, page_in(browser, url) as page:
        await page.get_by_label("Operator token").fill("токен-0123456789")
        await page.keyboard.press("Enter")
        await expect(page.locator("#refused")).to_contain_text("no token has such characters")
        await page.clock.install()
        await page.get_by_label("Operator token").fill(rig.TOKEN)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.evaluate("for (const _ of [1, 2]) document.getElementById('submit').click()")
        await expect(row(page, "chat-a")).to_contain_text("done")
        assert 1 == len([address for address in asked if "parked=true" in address])


async def test_a_sidecar_that_breaks_off_or_hangs(browser: Browser, store: rig.Store) -> None:
    """Half an answer and one that never comes are told, and the page goes on by itself."""
    await store.turn("chat-a", text="First")
    async with console(browser, store) as page:
        await row(page, "chat-a").get_by_role("button").click()
        await expect(viewer(page)).to_contain_text("First")
        half = {"body": '{"turns":[{"task_id"', "headers": {"ETag": '"half"'}}
        await page.route("**/turns*", lambda route: route.fulfill(**half))
        await page.clock.fast_forward(4_000)
        await expect(page.locator("#banner")).to_contain_text("The answer was 200 OK and not the sidecar's, retrying")
        await expect(viewer(page)).to_contain_text("First")
        await page.evaluate("void (AbortSignal.timeout = () => AbortSignal.abort())")  # the time is over at once
        await page.clock.fast_forward(8_000)
        await expect(page.locator("#banner")).to_contain_text("Can't reach the sidecar")
        await page.evaluate("void (AbortSignal.timeout = () => new AbortController().signal)")
        await page.unroute("**/turns*")
        await page.clock.fast_forward(8_000)
        await expect(page.locator("#banner")).to_be_hidden()


async def test_labels_after_an_outage(browser: Browser, store: rig.Store) -> None:
    """A row whose first words could not be read shows its id, and them once the sidecar is reached again."""
    await store.turn("chat-a", prompt="First words")
    async with console(browser, store) as page:
        await expect(row(page, "chat-a").locator(".label")).to_have_text("First words")
        await page.route(re.compile("/chat-a"), lambda route: route.abort())
        await page.reload()
        await expect(row(page, "chat-a").locator(".label")).to_have_text("chat-a")
        await page.unroute(re.compile("/chat-a"))
        await page.clock.fast_forward(4_000)
        await expect(row(page, "chat-a").locator(".label")).to_have_text("First words")


async def test_lists_that_move_while_they_are_paged(browser: Browser, store: rig.Store) -> None:
    """A page is loaded once; what the first page leaves stays, and the focus stands on what came."""
    for number in range(60):
        await store.turn(f"chat-{number:02}", prompt=f"Session {number:02}")
    async with console(browser, store, workspace="acme.w-1") as page:
        rows = page.locator("#recent li")
        await expect(rows).to_have_count(50)
        await page.evaluate("for (const _ of [1, 2]) document.getElementById('older').click()")
        await expect(page.locator("#scope")).to_contain_text("60 sessions")
        await expect(row(page, "chat-09").get_by_role("button")).to_be_focused()
        await store.turn("chat-new")
        await page.clock.fast_forward(4_000)
        await expect(rows).to_have_count(61)
        await page.get_by_role("searchbox").fill("session")
        hits = page.locator("#results li")
        await expect(page.locator("#found")).to_contain_text("so far")
        first = await hits.count()
        await page.evaluate("for (const _ of [1, 2]) document.querySelector('#results .wide').click()")
        await expect(hits.nth(first).get_by_role("button")).to_be_focused()
        texts = await hits.all_inner_texts()
        assert len(set(texts)) == len(texts)


async def test_earlier_turns_and_older_sessions(browser: Browser, store: rig.Store) -> None:
    """What is beyond the first page is a click away, and a hit among it is found by itself."""
    for number in range(55):
        await store.turn(f"chat-{number:02}", prompt=f"Session {number}")
    for number in range(60):
        await store.turn("chat-long", prompt=f"Question {number:02}", text=f"Answer {number:02}")
    async with console(browser, store) as page:
        await expect(page.locator("#index li")).to_have_count(50)
        await expect(page.locator("#scope")).to_contain_text("50+ sessions")
        await page.get_by_role("button", name="Load older").click()
        await expect(page.locator("#index li")).to_have_count(56)
        await expect(page.get_by_role("button", name="Load older")).to_be_hidden()
        await row(page, "chat-long").get_by_role("button").click()
        await expect(viewer(page).get_by_text("Answer 59")).to_be_in_viewport()
        await expect(viewer(page).get_by_role("article")).to_have_count(50)
        await action(page, "Earlier turns").click()
        await expect(viewer(page).get_by_role("article")).to_have_count(60)
        await expect(viewer(page).get_by_role("region", name="Turns")).to_be_focused()
        await page.get_by_role("searchbox").fill("03")
        await section(page, "hit").get_by_role("button", name="Question 03").click()
        await expect(page.locator(".turn.found")).to_contain_text("Answer 03")
        await expect(page.locator(".turn.found")).to_be_in_viewport()
        # more than a page of them at once: there is no gap before them
        for number in range(60, 111):
            await store.turn("chat-long", text=f"Answer {number}")
        await page.clock.fast_forward(4_000)
        await expect(viewer(page).get_by_text("Answer 110")).to_be_attached()
        await expect(viewer(page).get_by_role("article")).to_have_count(50)
        await action(page, "Earlier turns").click()
        await expect(viewer(page).get_by_role("article")).to_have_count(111)


async def test_bulk_retirement(browser: Browser, store: rig.Store) -> None:
    """The dialog names the number; the chosen sessions go, and no other."""
    for name in "abcd":
        await store.turn(f"chat-{name}", "working" if name == "b" else "completed")
    async with console(browser, store) as page:
        await expect(row(page, "chat-b")).to_contain_text("working")
        await page.get_by_role("button", name="Select").click()
        await page.get_by_role("checkbox", name="Select chat-b").check()
        await page.get_by_role("checkbox", name="Select chat-d").check()
        await page.get_by_role("button", name="Retire 2").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("Retire 2 sessions?")
        await expect(dialog).to_contain_text("Running now: 1 session of them.")
        await dialog.get_by_role("button", name="Retire 2").click()
        await expect(page.get_by_text("2 sessions retired")).to_be_visible()
        assert ["chat-c", "chat-a"] == await keys(section(page, "Recent"))
    retired = await store.raw("SELECT session_id FROM tasks_session_tombstones ORDER BY session_id")
    assert ["chat-b", "chat-d"] == [each.session_id for each in retired]


async def test_clearing_keeps_the_id(browser: Browser, store: rig.Store) -> None:
    """Clear asks the server to refuse where a turn began meanwhile, says why, and deletes when none did."""
    await store.turn("chat-a")
    async with console(browser, store) as page:
        await row(page, "chat-a").get_by_role("button").click()
        await action(page, "Clear history").click()
        begun = await store.turn("chat-a", "working")
        await page.get_by_role("dialog").get_by_role("button", name="Clear history").click()
        await expect(page.locator("#notice")).to_contain_text("A turn of the session waits or runs")
        await page.clock.fast_forward(4_000)
        await expect(action(page, "Clear history")).to_be_disabled()
        await store.turn("chat-a", task_id=begun)
        await page.clock.fast_forward(4_000)
        await action(page, "Clear history").click()
        await page.get_by_role("dialog").get_by_role("button", name="Clear history").click()
        await expect(page.get_by_text("No sessions in this store yet")).to_be_visible()
        await store.turn("chat-a", prompt="Again?")
        await page.clock.fast_forward(4_000)
        await expect(row(page, "chat-a")).to_contain_text("Again?")


async def test_offline(browser: Browser, store: rig.Store) -> None:
    """Without a connection the page says so, keeps what it had, and goes on by itself."""
    await store.turn("chat-a", prompt="Still here")
    async with console(browser, store) as page:
        await expect(row(page, "chat-a")).to_contain_text("Still here")
        await page.context.set_offline(True)
        await page.clock.fast_forward(4_000)
        await expect(page.get_by_text("Can't reach the sidecar, retrying in 8 s")).to_be_visible()
        await expect(page.locator("#scope")).to_contain_text("as of")
        await expect(row(page, "chat-a")).to_contain_text("Still here")
        await page.context.set_offline(False)
        await page.clock.fast_forward(8_000)
        await expect(page.locator("#scope")).to_contain_text("up to date")
        await expect(page.locator("#banner")).to_be_hidden()


async def test_a_store_that_is_not_there_yet(browser: Browser, tmp_path: Path) -> None:
    """The problem's own words are shown until the agent has made its table; an empty store says how to fill it."""
    async with rig.sqlite_store(tmp_path / "tasks.db") as store:
        await store.raw("CREATE TABLE other (id TEXT)")
        async with console(browser, store) as page:
            await expect(page.locator("#banner")).to_contain_text("retrying in")
            assert "SIDECAR_TASKS_TABLE" in await page.locator("#banner").inner_text()
            await store.tasks.initialize()
            await page.clock.fast_forward(60_000)
            await expect(page.get_by_text("No sessions in this store yet")).to_be_visible()


async def test_a_token_that_may_not(browser: Browser, store: rig.Store, tmp_path: Path) -> None:
    """Without the scope to read there is no sign-in; without that to retire, the refusal is told and nothing goes."""
    rows = {"reader-0123456789": ["read"], "searcher-0123456789": ["search"]}
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(token_row(token, scopes) for token, scopes in rows.items()), "utf-8")
    tokens.chmod(0o600)
    await store.turn("chat-a", prompt="Read me")
    async with served(create_app(rig.config_for(store, tokens_file=tokens))) as url, page_in(browser, url) as page:
        await page.get_by_label("Operator token").fill("searcher-0123456789")
        await page.keyboard.press("Enter")
        await expect(page.locator("#refused")).to_contain_text("lacks the scope `read`")
        await page.get_by_label("Operator token").fill("reader-0123456789")
        await page.keyboard.press("Enter")
        await expect(row(page, "chat-a")).to_contain_text("Read me")
        await row(page, "chat-a").get_by_role("button").click()
        await action(page, "Retire").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retire").click()
        await expect(page.locator("#notice")).to_contain_text("lacks the scope `retire`")
        await expect(row(page, "chat-a")).to_be_visible()
        await page.get_by_role("searchbox").fill("read")
        await expect(page.locator("#results-heading")).to_contain_text("lacks the scope `search`")


def token_row(token: str, scopes: list[str]) -> str:
    name, digest = token.partition("-")[0], hashlib.sha256(token.encode()).hexdigest()
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes)}\nowners = ["*"]\n'


async def test_polling(browser: Browser, store: rig.Store) -> None:
    """An unchanged store answers each poll with 304s; a hidden page asks nothing, and at once when it is seen again."""
    await store.turn("chat-a")
    async with console(browser, store) as page:
        await row(page, "chat-a").get_by_role("button").click()
        await expect(viewer(page)).to_contain_text("The answer.")
        await expect(row(page, "chat-a")).to_contain_text("done")
        statuses: list[int] = []
        page.on("response", lambda response: statuses.append(response.status))
        async with page.expect_response(re.compile("/turns")):
            await page.clock.fast_forward(4_000)
        assert [304] * 3 == statuses
        await set_hidden(page, True)
        asked: list[Request] = []
        page.on("request", lambda request: asked.append(request))
        await page.clock.fast_forward(60_000)
        assert [] == asked
        async with page.expect_response(re.compile("/turns")):
            await set_hidden(page, False)


async def set_hidden(page: Page, is_hidden: bool) -> None:
    script = """(isHidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(script, is_hidden)


async def test_a_narrow_window_and_the_dark(browser: Browser, demo: Demo) -> None:
    """Below 800 pixels there is one column; the manual colour scheme outlives the page."""
    async with page_in(browser, demo.lines["console"], viewport={"width": 400, "height": 700}) as page:
        await expect(viewer(page)).to_be_hidden()
        await row(page, "chat-trip-lisbon").get_by_role("button").click()
        await expect(page.get_by_role("complementary")).to_be_in_viewport()
        await expect(page.get_by_role("searchbox")).to_be_hidden()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await action(page, "‹ Sessions").click()
        await expect(row(page, "chat-trip-lisbon").get_by_role("button")).to_be_focused()
        before = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.get_by_role("button", name="Dark").click()
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert before != dark
        await page.reload()
        await expect(page.get_by_role("button", name="Light")).to_be_visible()
        assert dark == await page.evaluate("getComputedStyle(document.body).backgroundColor")


async def test_below_a_mount_point(browser: Browser, store: rig.Store) -> None:
    """Mounted in an agent, the page reads, pages and deletes there."""
    await store.turn("chat-a", prompt="Mounted")
    app = Starlette(routes=[Mount("/deep/sidecar", create_app(rig.config_for(store)))])
    async with served(app) as url, page_in(browser, f"{url}/deep/sidecar/#token={rig.TOKEN}") as page:
        await expect(row(page, "chat-a")).to_contain_text("Mounted")
        await row(page, "chat-a").get_by_role("button").click()
        await action(page, "Retire").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retire").click()
        await expect(page.get_by_text("No sessions in this store yet")).to_be_visible()
    assert 0 == len(await store.raw("SELECT id FROM tasks"))


async def test_at_400_percent(browser: Browser, demo: Demo) -> None:
    """On 1280 x 1024 pixels at 400 % nothing lies beside the window, and nothing that stays covers rows or turns."""
    async with page_in(browser, demo.lines["console"], viewport={"width": 320, "height": 256}) as page:
        await page.get_by_role("button", name="Select").click()
        for name in ("chat-deploy-canary", "chat-billing-export", "chat-load-test"):
            await row(page, name).get_by_role("checkbox").check()
        await page.get_by_role("button", name="Done", exact=True).click()
        await row(page, "chat-trip-lisbon").get_by_role("button").click()
        await expect(page.get_by_role("complementary")).to_be_visible()
        turns = await viewer(page).get_by_role("region", name="Turns").bounding_box()
        assert turns is not None
        assert turns["height"] > 128
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await page.evaluate("document.documentElement.scrollHeight <= innerHeight")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_screenshots(scheme: Scheme, browser: Browser, demo: Demo, full: bool) -> None:
    """The pictures of the README, taken anew with --full: the demo, the parked session open."""
    if not full:
        pytest.skip("they are committed, and taken anew with --full")
    options = {"color_scheme": scheme, "viewport": {"width": 1280, "height": 800}}
    async with page_in(browser, demo.lines["console"], **options) as page:
        await expect(row(page, "chat-invoice-review")).to_contain_text("done")
        await row(page, "chat-trip-lisbon").get_by_role("button").click()
        await expect(page.get_by_role("complementary")).to_be_visible()
        SCREENSHOTS.mkdir(exist_ok=True)
        picture = await page.screenshot(path=SCREENSHOTS / f"{scheme}.png", animations="disabled")
    assert MOST_SCREENSHOT_BYTES > len(picture)
