"""What programs in a sandbox are told about their way out. A word to them, not a barrier: there is no other way."""

from __future__ import annotations

from typing import Final

from codespace.sandbox.listener import HOST, PORT

_LOOPBACK: Final = "localhost,127.0.0.1,::1,.localhost"


def proxy_environment() -> dict[str, str]:
    """Return the variables that lead http and https through the proxy, and keep loopback out of it.

    Programs read them in one case or the other, so both are set. Node reads them only if told to.
    """
    variables = {"NODE_USE_ENV_PROXY": "1"}
    for name, value in (
        ("http_proxy", f"http://{HOST}:{PORT}"),
        ("https_proxy", f"http://{HOST}:{PORT}"),
        ("all_proxy", f"http://{HOST}:{PORT}"),
        ("no_proxy", _LOOPBACK),
    ):
        variables[name] = variables[name.upper()] = value
    return variables
