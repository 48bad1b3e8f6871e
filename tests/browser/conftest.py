"""A real browser at the console of the installed daemon, and an agent at its other door.

The browser is Debian's Chromium, driven by Playwright; one for the package, a fresh profile for each test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from codespace.errors import Refusal
from codespace.testing.installed import script
from codespace.testing.ports import free_port
from codespace.testing.site import Site
from codespace.testing.wire import Wire

PATIENCE_MILLISECONDS = 60_000
# A busy machine of two cores; what is waited for comes within a second on a quiet one.
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP rebound.example 127.0.0.1",
)
PICTURES = os.environ.get("CONSOLE_PICTURES")
"""Where the pictures of the docs are put, where they are wanted anew; the root that they show is `shop` there."""
expect.set_options(timeout=PATIENCE_MILLISECONDS)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests here."""
    program = shutil.which("chromium")
    assert program is not None, "Debian's package chromium is needed"
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # Chromium's own sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@dataclass
class Console:
    """A daemon with a console, an agent that speaks to it over stdio, and its operator's browser."""

    site: Site
    agent: Wire
    port: int
    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """What browsers complained about: errors of scripts, violations of the policy."""
    asked: set[str] = field(default_factory=set)
    """The hosts that browsers asked for something."""

    @property
    def url(self) -> str:
        return f"http://codespace.localhost:{self.port}/console"

    @property
    def root(self) -> Path:
        return self.site.root()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool as the agent; return its result or raise its refusal."""
        answer = self.agent.call(tool, **arguments)
        if answer.get("isError"):
            raise Refusal.from_body(json.loads(answer["content"][0]["text"]))
        return dict(answer["structuredContent"])

    def held(self, tool: str, **arguments: Any) -> str:
        """Send a request in the workspace that is held; return the id of its hold."""
        return self.call_held(tool, workspace_id="main", **arguments)

    def call_held(self, tool: str, **arguments: Any) -> str:
        """Send a request that is held; return the id of its hold."""
        with pytest.raises(Refusal) as caught:
            self.call(tool, **arguments)
        assert caught.value.code == "APPROVAL_REQUIRED", caught.value
        assert caught.value.approval_id is not None
        return caught.value.approval_id

    def state(self, approval_id: str) -> str:
        return str(self.call("approval_status", approval_id=approval_id)["state"])

    def stranger(self, **options: Any) -> Page:
        """Return a page of a browser that is not signed in."""
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.told.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.told.append(message.text))
        page.on("request", lambda request: self.asked.add(request.url.split("/")[2]))
        return page

    def link(self) -> str:
        """Make a sign-in link as the operator; return the file that it is in."""
        done = subprocess.run(
            [script(), "console", "--no-browser"], env=self.site.environ, capture_output=True, text=True, check=True
        )
        assert "ticket" not in done.stdout + done.stderr
        path = self.site.state / "console" / "sign-in.html"
        assert str(path) in done.stdout
        assert path.stat().st_mode & 0o777 == 0o600
        return f"file://{path}"

    def signed_in(self, **options: Any) -> Page:
        """Return a page of the operator's browser, signed in by its link and button."""
        page = self.stranger(**options)
        page.goto(self.link())
        page.get_by_role("button", name="Sign in to this console").click()
        expect(page.get_by_role("heading", name="Held")).to_be_visible()
        return page


def picture(page: Page, name: str) -> None:
    """Keep a picture of the page for the README, where that is asked for."""
    if PICTURES is not None:
        Path(PICTURES, f"{name}.png").write_bytes(page.screenshot())


def shown_root() -> Path | None:
    """Return a root, new for each test, whose name reads well in a picture; none where none is drawn."""
    if PICTURES is None:
        return None
    root = Path(PICTURES, "shop")
    shutil.rmtree(root, ignore_errors=True)
    return root


Open = Callable[..., Any]


@pytest.fixture
def open_console(browser: Browser, tmp_path: Path) -> Open:
    """Start a daemon with a console: `with open_console(files={...}, approvals="operator") as console`."""

    @contextmanager
    def opened(files: dict[str, str] | None = None, approvals: str = "operator", **options: Any) -> Iterator[Console]:
        site = Site(tmp_path, **options)
        site.add_workspace(files=files or {}, root=shown_root(), approvals=approvals)
        port = free_port()
        site.extra_environ["CODESPACE_HTTP_PORT"] = str(port)
        with Wire(site, command=[script(), "serve", "--stdio", "--console"]) as agent:
            console = Console(site, agent, port, browser)
            try:
                yield console
            finally:
                for context in console.contexts:
                    context.close()

    return opened
