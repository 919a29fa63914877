"""What browser tests share: Chromium, servers to point it at, and a page that reports what it must never do."""

import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright
from starlette.applications import Starlette

from sidecar.serve import listen, running, url_of
from tests.test_demo import Demo, free_port, running_demo

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TELL_VIOLATIONS = """
addEventListener("securitypolicyviolation", ({ effectiveDirective, blockedURI }) =>
  console.error(`violated: ${effectiveDirective} by ${blockedURI}`));
"""
DEMO_SECONDS = 300.0


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Debian's browser; without it the tests are skipped, but in CI they fail."""
    if not CHROMIUM.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{CHROMIUM} is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@asynccontextmanager
async def profile(browser: Browser, **options: Any) -> AsyncIterator[BrowserContext]:
    """A browser profile of its own; at its end no page in it violated its policy, opened a dialog or threw."""
    context = await browser.new_context(**options)
    faults: list[str] = []
    await context.add_init_script(TELL_VIOLATIONS)
    context.on("console", lambda message: faults.extend(violations(message)))
    context.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    context.on("weberror", lambda error: faults.append(f"threw: {error.error}"))
    try:
        yield context
    finally:
        await context.close()
    assert [] == faults


def violations(message: ConsoleMessage) -> list[str]:
    is_one = message.type == "error" and ("violat" in message.text or "Content Security Policy" in message.text)
    return [message.text] if is_one else []


@asynccontextmanager
async def page_in(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    """A page at an address, in a profile of its own."""
    async with profile(browser, **options) as context:
        page = await context.new_page()
        await page.goto(url)
        yield page


@contextmanager
def demo_in(folder: Path) -> Iterator[Demo]:
    """The servers of `make demo`, on free ports."""
    with running_demo(folder, free_port(), DEMO_SECONDS) as demo:
        # its log goes on: a pipe that nobody reads would stop it
        reader = Thread(target=deque, args=(demo.process.stdout, 0))
        reader.start()
        try:
            yield demo
        finally:
            demo.process.kill()
            reader.join()


def send(demo: Demo, prompt: str, context_id: str) -> dict[str, Any]:
    """A message of the operator's console to the demo's agent, over A2A; the task that answers it."""
    message = {
        "messageId": f"console-{prompt}",
        "role": "ROLE_USER",
        "contextId": context_id,
        "parts": [{"text": prompt}],
        "metadata": {"hitl_resume": True},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    answer = httpx.post(demo.lines["agent"].split()[0], json=body, headers={"A2A-Version": "1.0"}).json()
    task: dict[str, Any] = answer["result"]["task"]
    return task


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """The address of an application that is served as `a2a-sidecar serve` does."""
    with listen("127.0.0.1", 0) as listener:
        async with running(app, listener):
            yield url_of(listener)
