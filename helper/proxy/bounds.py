"""The numbers of one door, from `limits`; tests bring shorter ones."""

from __future__ import annotations

from dataclasses import dataclass

from codespace import limits


@dataclass(frozen=True, slots=True)
class Bounds:
    """Each is the limit PROXY_ and its name."""

    head_seconds: float = limits.PROXY_HEAD_SECONDS
    hello_seconds: float = limits.PROXY_HELLO_SECONDS
    resolve_seconds: float = limits.PROXY_RESOLVE_SECONDS
    dial_seconds: float = limits.PROXY_DIAL_SECONDS
    dial_each_seconds: float = limits.PROXY_DIAL_EACH_SECONDS
    idle_seconds: float = limits.PROXY_IDLE_SECONDS
    half_seconds: float = limits.PROXY_HALF_SECONDS
    addresses: int = limits.PROXY_ADDRESSES
    connections: int = limits.PROXY_CONNECTIONS
