"""What is refused before anything listens, and the token file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from codespace.http.exposure import Address, check, hosts
from codespace.http.token import load_or_create
from codespace.settings.fault import SettingsError

from .door import TOKEN, open_door


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.example", ""])
def test_a_door_to_other_machines_needs_a_token_of_the_operators(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check(host, token=None, allowed_hosts=(), no_auth=False)
    assert caught.value.key == "CODESPACE_HTTP_TOKEN"
    assert caught.value.fix
    check(host, token=TOKEN, allowed_hosts=(), no_auth=False)


def test_a_public_name_needs_a_token_of_the_operators() -> None:
    with pytest.raises(SettingsError, match="CODESPACE_HTTP_TOKEN"):
        check("127.0.0.1", token=None, allowed_hosts=["box.example"], no_auth=False)
    check("127.0.0.1", token=None, allowed_hosts=["codespace.localhost:8787", "[::1]:1"], no_auth=False)


@pytest.mark.parametrize(("host", "allowed"), [("0.0.0.0", ()), ("127.0.0.1", ("box.example",))])
def test_a_token_that_is_soon_guessed_is_for_this_machine_only(host: str, allowed: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="CODESPACE_HTTP_TOKEN") as caught:
        check(host, token="x" * 15, allowed_hosts=allowed, no_auth=False)
    assert "under 16 characters" in caught.value.problem
    check(host, token="x" * 16, allowed_hosts=allowed, no_auth=False)
    check("127.0.0.1", token="x", allowed_hosts=(), no_auth=False)


@pytest.mark.parametrize(("host", "allowed"), [("0.0.0.0", ()), ("127.0.0.1", ("box.example",))])
def test_no_auth_is_for_this_machine_only_even_with_a_token(host: str, allowed: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="--no-auth"):
        check(host, token=TOKEN, allowed_hosts=allowed, no_auth=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_a_door_for_this_machine_needs_nothing_more(host: str) -> None:
    check(host, token=None, allowed_hosts=(), no_auth=True)
    check(host, token=None, allowed_hosts=(), no_auth=False)


@pytest.mark.parametrize("token", ["", "with space", "ünicode", "line\n"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="CODESPACE_HTTP_TOKEN"):
        check("127.0.0.1", token=token, allowed_hosts=(), no_auth=False)


@pytest.mark.parametrize("allowed", ["", "http://box.example", "*", "box example", "a/b"])
def test_what_is_no_host_name_is_refused(allowed: str) -> None:
    with pytest.raises(SettingsError, match="CODESPACE_ALLOWED_HOSTS"):
        check("127.0.0.1", token=TOKEN, allowed_hosts=[allowed], no_auth=False)


def test_a_wildcard_address_is_no_host_name() -> None:
    assert "0.0.0.0:8787" not in hosts(Address("0.0.0.0", 8787), ())
    assert Address("::", 8787).url == "http://127.0.0.1:8787/mcp"
    assert Address("::1", 8787).url == "http://[::1]:8787/mcp"


def test_a_token_is_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    os.umask(old := os.umask(0))
    try:
        os.umask(0)
        token = load_or_create(str(path))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 40
    assert load_or_create(str(path)) == token
    assert os.listdir(tmp_path) == ["token"]


def test_daemons_that_start_at_once_agree_on_the_token(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    tokens: list[str] = []

    def start() -> None:
        barrier.wait()
        tokens.append(load_or_create(str(tmp_path / "token")))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1


def test_a_token_file_that_others_could_have_read_or_made_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    load_or_create(str(path))
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="by others"):
        load_or_create(str(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(SettingsError, match="cannot be opened"):
        load_or_create(str(link))
    empty = tmp_path / "empty"
    empty.touch(0o600)
    with pytest.raises(SettingsError, match="holds no token"):
        load_or_create(str(empty))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    for path in (fifo, folder):
        with pytest.raises(SettingsError, match="no regular file"):
            load_or_create(str(path))


async def test_the_door_keeps_a_generated_token_and_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    async with open_door(token=None, token_file=str(path)) as door:
        async with door.client(token=path.read_text().strip()) as client:
            assert (await client.call_tool("read", {"path": "a.txt"})).is_error is False
        async with door.http(token=None) as http:
            assert (await http.get("/mcp")).status_code == 401


async def test_a_port_that_is_taken_is_a_settings_error_with_a_fix() -> None:
    from codespace.http.listener import listen

    async with open_door() as door:
        with pytest.raises(SettingsError, match="CODESPACE_HTTP_PORT"):
            listen("127.0.0.1", door.address.port)


def test_an_address_of_another_machine_is_a_mistake_in_the_host_and_not_in_the_port() -> None:
    from codespace.http.listener import listen

    with pytest.raises(SettingsError, match="CODESPACE_HTTP_HOST") as caught:
        listen("192.0.2.1", 0)
    assert "port" not in caught.value.fix


@pytest.mark.parametrize("host", ["a" * 70, "a..b", ".localhost"])
def test_what_no_resolver_can_ask_for_is_a_settings_error_with_a_fix(host: str) -> None:
    from codespace.http.listener import listen

    with pytest.raises(SettingsError, match="CODESPACE_HTTP_HOST"):
        listen(host, 0)
