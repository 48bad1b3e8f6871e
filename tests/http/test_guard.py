"""Who is let in: Host, Origin, token and forwarding, on every route and through real sockets."""

from __future__ import annotations

import pytest

from codespace import limits

from .door import INITIALIZE, TOKEN, open_door, raw, status_of

ROUTES = ["/mcp", "/healthz", "/nothing"]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_rebound_name_is_misdirected_on_every_route(route: str) -> None:
    async with open_door() as door:
        port = door.address.port
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1",
            f"127.0.0.1.evil.example:{port}",
            f"localhost.:{port}",
            f"localhost:{port}@evil.example",
            f"127.0.0.1:{port + 1}",
        ):
            async with await door.connect() as stream:
                await stream.send_all(raw("GET", route, door, host=host))
                assert await status_of(stream) == 421, host


async def test_a_request_without_a_host_or_with_two_gets_nowhere() -> None:
    async with open_door() as door:
        async with await door.connect() as stream:
            await stream.send_all(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert await status_of(stream) == 421
        async with await door.connect() as stream:
            own = door.address.authority.encode()
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nhost: " + own + b"\r\nhost: evil.example\r\n\r\n")
            assert await status_of(stream) in (400, 421)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_page_of_another_origin_is_refused_on_every_route_and_an_own_one_is_not(route: str) -> None:
    async with open_door() as door, door.http() as http:
        port = door.address.port
        for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}", ""):
            assert (await http.get(route, headers={"origin": origin})).status_code == 403, origin
        own = await http.get(route, headers={"origin": f"http://localhost:{port}"})
        assert own.status_code != 403


async def test_this_machines_own_names_are_served() -> None:
    async with open_door() as door:
        for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
            async with await door.connect() as stream:
                await stream.send_all(raw("GET", "/healthz", door, host=f"{name}:{door.address.port}"))
                assert await status_of(stream) == 200, name


async def test_an_allowed_host_is_served_and_its_origin_too() -> None:
    async with open_door(allowed_hosts=["box.example"]) as door, door.http(host="box.example") as http:
        assert (await http.get("/healthz", headers={"origin": "https://box.example"})).status_code == 200
        assert (await http.get("/healthz", headers={"host": f"Box.Example:{door.address.port}"})).status_code == 200
        assert (await http.get("/healthz", headers={"host": "box.example.evil"})).status_code == 421


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}, Bearer {TOKEN}",
        "Bearer \xff",
    ],
)
async def test_without_the_token_the_answer_is_unauthorized_and_nothing_happens(sent: str | None) -> None:
    async with open_door() as door, door.http(token=None) as http:
        headers = {} if sent is None else {"authorization": sent.encode("latin-1")}
        answer = await http.post("/mcp", json=INITIALIZE, headers=headers)
        assert answer.status_code == 401
        assert answer.json() == {"error": "unauthorized"}
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await http.get(f"/mcp?token={TOKEN}&access_token={TOKEN}")).status_code == 401
    assert door.fake.calls == []


async def test_two_authorization_headers_are_none() -> None:
    async with open_door() as door, await door.connect() as stream:
        request = raw("GET", "/nothing", door).replace(
            b"\r\n\r\n", f"\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        await stream.send_all(request)
        assert await status_of(stream) == 401


async def test_the_token_lets_in_whatever_the_case_of_bearer() -> None:
    async with open_door() as door, door.http(token=None) as http:
        answer = await http.post("/mcp", json=INITIALIZE, headers={"authorization": f"bearer {TOKEN}"})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "name", ["x-forwarded-for", "x-forwarded-host", "X-Forwarded-Proto", "forwarded", "via", "x-real-ip"]
)
async def test_without_a_token_forwarded_requests_are_refused(name: str) -> None:
    async with open_door(token=None, no_auth=True) as door, door.http(token=None) as http:
        assert (await http.post("/mcp", json=INITIALIZE)).status_code == 200
        for route in ROUTES:
            assert (await http.get(route, headers={name: "1.2.3.4"})).status_code == 403


async def test_a_form_post_can_do_nothing_even_without_a_token() -> None:
    async with open_door(token=None, no_auth=True) as door, door.http(token=None) as http:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = await http.post("/mcp", content=b"{}", headers={"content-type": kind})
            assert 400 <= answer.status_code < 500
    assert door.fake.calls == []


async def test_a_websocket_is_refused() -> None:
    async with open_door() as door, await door.connect() as stream:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
        await stream.send_all(raw("GET", "/mcp", door, sec_websocket_key="AAAAAAAAAAAAAAAAAAAAAA==", **upgrade))
        assert await status_of(stream) == 403


async def test_a_body_that_comes_without_a_token_is_not_taken_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONSOLE_FORM_BYTES", 1000)
    long = b"x" * (limits.CONSOLE_FORM_BYTES + 1)
    async with open_door() as door:
        async with door.http(token=None) as http:
            assert (await http.post("/healthz", content=long)).status_code == 413
            assert (await http.post("/mcp", content=long)).status_code == 401
        async with door.http() as http:
            assert (await http.post("/mcp", content=long)).status_code == 400  # no JSON, but read
