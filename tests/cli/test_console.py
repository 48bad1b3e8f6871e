"""`codespace console` and `serve --console`: a link for the operator alone, and a console beside what speaks MCP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from codespace.cli.console import _trouble
from codespace.testing.installed import HttpDaemon, script
from codespace.testing.ports import free_port
from codespace.testing.site import Site
from codespace.testing.wire import Wire


def console(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script(), "console", *words], env=site.environ, capture_output=True, text=True, check=False)


def with_console(site: Site) -> Wire:
    return Wire(site, command=[script(), "serve", "--stdio", "--console"])


def test_without_a_console_nothing_is_made_and_it_is_said_how_to_have_one(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    said = console(site)
    assert said.returncode == 2
    assert "codespace serve --console" in said.stderr
    assert not (site.state / "console").exists()


def test_a_console_that_is_gone_without_a_word_is_not_opened(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    site.extra_environ["CODESPACE_HTTP_PORT"] = str(free_port())
    with with_console(site) as agent:
        assert console(site, "--no-browser").returncode == 0
        agent.process.kill()
        agent.process.wait()
        assert len(list((site.state / "console").glob("address-*"))) == 1
        assert console(site, "--no-browser").returncode == 2
        assert not list((site.state / "console").glob("address-*"))


def test_of_two_consoles_of_one_state_directory_the_newest_is_opened_that_is_there(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    opened = []
    ports = [free_port(), free_port()]
    site.extra_environ["CODESPACE_HTTP_PORT"] = str(ports[0])
    with with_console(site):
        site.extra_environ["CODESPACE_HTTP_PORT"] = str(ports[1])
        for serving in (with_console(site), nullcontext()):
            with serving:
                assert console(site, "--no-browser").returncode == 0
                opened.append((site.state / "console/sign-in.html").read_text())
    assert [f":{port}/" in page for port, page in zip(reversed(ports), opened, strict=True)] == [True, True]


@pytest.mark.parametrize("ours", [True, False])
def test_a_port_whose_answer_drips_does_not_hold_the_command(monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    asked = threading.Event()
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            asked.set()
            for letter in b"HTTP/1.1 200":
                connection.send(bytes([letter]))
                if over.wait(1):
                    return

    monkeypatch.setattr(os, "geteuid", partial(int, os.geteuid() + (not ours)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        begun = time.monotonic()
        trouble = str(_trouble(f"http://127.0.0.1:{listener.getsockname()[1]}/"))
        took = time.monotonic() - begun
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert took < 8  # of the 12 seconds that the answer takes
    assert ("does not answer" if ours else "another account") in trouble
    assert asked.is_set() is ours  # a stranger is told nothing


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::1"])
def test_a_port_that_another_account_has_taken_is_given_no_ticket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    (tmp_path / "sign-in").touch()
    port = free_port()
    argv = [sys.executable, "-u", "-m", "http.server", str(port), "--bind", address, "--directory", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith(b"Serving")
            assert _trouble(f"http://127.0.0.1:{port}/") is None
            other = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: other)
            assert "another account" in str(_trouble(f"http://127.0.0.1:{port}/"))
        finally:
            server.kill()


def test_a_browser_that_is_no_command_leaves_the_file_to_be_opened(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    site.extra_environ |= {"CODESPACE_HTTP_PORT": str(free_port()), "BROWSER": "'%s"}
    with with_console(site):
        said = console(site)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("Open this file in your browser, soon: ")


def test_the_browser_is_given_the_file_whatever_its_path_is_and_wherever_the_console_is(tmp_path: Path) -> None:
    folder = tmp_path / "a #b %20c"
    folder.mkdir()
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    site = Site(folder)
    site.add_workspace()
    site.extra_environ |= {"CODESPACE_HTTP_PORT": str(free_port()), "BROWSER": str(browser)}
    site.extra_environ |= {"CODESPACE_HTTP_HOST": "::1"}
    with with_console(site):
        said = console(site)
    assert said.returncode == 0
    opened = urlsplit((tmp_path / "opened").read_text())
    assert (opened.scheme, unquote(opened.path)) == ("file", str(site.state / "console/sign-in.html"))


def test_a_console_that_no_browser_would_find_is_not_announced(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    site.extra_environ |= {"CODESPACE_HTTP_PORT": str(free_port()), "CODESPACE_HTTP_HOST": "127.0.0.2"}
    words = [script(), "serve", "--http", "--console"]
    alone = subprocess.run(
        words, env=site.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert alone.returncode == 1
    assert "No browser finds the console at 127.0.0.2" in alone.stderr
    with with_console(site) as agent:
        assert not agent.call("workspace_info").get("isError")
        assert "No browser finds the console" in agent.said
        assert console(site, "--no-browser").returncode == 2


def test_a_second_daemon_whose_port_is_taken_serves_its_client_and_no_console(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    site.extra_environ["CODESPACE_HTTP_PORT"] = str(free_port())
    with with_console(site) as first:
        with with_console(site) as second:
            assert "isError" not in second.call("workspace_info") or not second.call("workspace_info")["isError"]
            assert "the console is not served by this daemon" in second.said
        assert "ticket" not in first.said
        assert console(site, "--no-browser").returncode == 0


def test_a_daemon_without_a_console_has_none(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    with HttpDaemon(site):
        assert console(site).returncode == 2
        assert not (site.state / "console").exists()
