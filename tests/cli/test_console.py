"""`codespace console` and `serve --console`: a link for the operator alone, and a console beside what speaks MCP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codespace.cli.console import _answers
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
        assert (site.state / "console" / "address").exists()
        assert console(site, "--no-browser").returncode == 2


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
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
            assert _answers(f"http://127.0.0.1:{port}/")
            other = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: other)
            assert not _answers(f"http://127.0.0.1:{port}/")
        finally:
            server.kill()


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
