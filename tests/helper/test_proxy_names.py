"""Names, addresses and rules: what is compared with the list, and what a name may lead to."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helper.proxy import addresses
from helper.proxy.names import BadTarget, Target, ascii_name, parse
from helper.proxy.policy import BadPolicy, Policy

from .street import entries


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("pypi.org:443", Target("pypi.org", 443)),
        ("PyPI.ORG:443", Target("pypi.org", 443)),
        ("pypi.org.:443", Target("pypi.org", 443)),
        ("a_b.example:80", Target("a_b.example", 80)),
        ("xn--bcher-kva.example:80", Target("xn--bcher-kva.example", 80)),
        ("[::1]:80", Target("::1", 80, literal=True)),
        ("[fe80::1%25eth0]:80", Target("fe80::1%25eth0", 80, literal=True)),
    ],
)
def test_a_name_has_one_form(written: str, meant: Target) -> None:
    assert parse(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            ":80",
            "pypi.org",
            "pypi.org:",
            "pypi.org:0",
            "pypi.org:65536",
            "pypi.org:+80",
            "pypi.org:8 0",
            "a:80:80",
        ),
        *("user@pypi.org:80", "pypi.org@evil:80", "..:80", "pypi..org:80", "pypi.org..:80", ".pypi.org:80", "-a:80"),
        *("pypi.org%00.evil:80", "pypi.org\\evil:80", "pypi.org/evil:80", "a b:80", "a\n:80", "bücher.example:80"),
        *("[::1:80", "[]:80", "[evil]:80", "[::1]80", "[::1]:80@a", "::1:80", f"{'a' * 64}.x:80", f"{'a.' * 128}:80"),
        *("*.pypi.org:80", "pypi.org:٨٠", "pypi.org:080000"),
    ],
)
def test_what_is_no_name_is_refused(written: str) -> None:
    with pytest.raises(BadTarget):
        parse(written)


LITERALS = [
    *("127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001"),
    *("0x7F.1", "127.0.0.1.", "0", "0x", "1.1.1.1", "1.2.3.4.5", "00000.1", "a.0x7f", "name.1", "256.256.256.256"),
]


@pytest.mark.parametrize("written", LITERALS)
def test_an_address_in_any_spelling_is_an_address(written: str) -> None:
    assert parse(f"{written}:80").literal


@given(st.one_of(st.from_regex(r"[0-9a-fA-FxX.]{1,30}", fullmatch=True), st.text(max_size=30)))
@example("0x7f.1")
@example("1.1.1.1 ")
def test_nothing_that_the_system_takes_for_an_address_passes_for_a_name(text: str) -> None:
    try:
        target = parse(text, 80)
    except BadTarget:
        return
    try:
        socket.inet_aton(target.host)
    except (OSError, UnicodeEncodeError):
        return
    assert target.literal


@given(st.text(max_size=300))
def test_a_target_that_is_read_is_read_the_same_again(text: str) -> None:
    try:
        target = parse(text, 80)
    except BadTarget:
        return
    assert parse(str(target)) == target


def admits(rule: object, target: str) -> bool:
    return Policy.load(entries([rule])).find(parse(target)) is not None  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        ("pypi.org", ["pypi.org:443", "PYPI.org.:80"], ["pypi.org:8443", "a.pypi.org:443", "xpypi.org:443", "org:443"]),
        ("*.pypi.org", ["a.pypi.org:443", "b.a.pypi.org:80"], ["pypi.org:443", "xpypi.org:443", "pypi.org.evil:443"]),
        ("pypi.org:8443", ["pypi.org:8443"], ["pypi.org:443", "pypi.org:80"]),
        ("*", ["anything.example:443", "x:80"], ["anything.example:22", "1.1.1.1:443", "[2606:4700::1111]:443"]),
        ("*:22", ["anything.example:22"], ["anything.example:443", "1.1.1.1:22"]),
        ("bücher.example", ["xn--bcher-kva.example:443"], ["bucher.example:443"]),
        ("1.1.1.1", [], ["1.1.1.1:443"]),
        ({"host": "db", "port": 5432, "address": "10.0.0.5"}, ["db:5432"], ["db:443", "10.0.0.5:5432"]),
        (
            {"host": "127.0.0.1", "port": 80, "address": "127.0.0.1"},
            ["127.0.0.1:80"],
            ["127.1:80", "0x7f.0.0.1:80", "127.0.0.1.:443", "localhost:80", "[::ffff:127.0.0.1]:80"],
        ),
        ({"host": "::1", "port": 80, "address": "::1"}, ["[::1]:80"], ["[0::1]:80", "[::1%25lo]:80"]),
    ],
)
def test_a_rule_admits_what_it_says_and_nothing_else(rule: object, yes: list[str], no: list[str]) -> None:
    assert all(admits(rule, target) for target in yes)
    assert [target for target in no if admits(rule, target)] == []


def test_an_empty_list_admits_nothing_and_a_pin_goes_before_a_name() -> None:
    assert Policy(()).find(parse("pypi.org:443")) is None
    pin = {"host": "pypi.org", "port": 443, "address": "10.0.0.1"}
    rule = Policy.load(entries(["*", "pypi.org", pin])).find(parse("pypi.org:443"))
    assert rule is not None
    assert rule.address == "10.0.0.1"


@pytest.mark.parametrize(
    "rule",
    [
        {"host": "a b"},
        {"host": "a", "port": 0},
        {"host": "a", "address": "0x7f.1"},
        {"host": None},
        {"host": "*."},
        {"host": "*.*.a"},
        {"host": "a", "port": "x"},
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(rule: dict[str, object]) -> None:
    with pytest.raises((BadPolicy, ValueError)):
        Policy.load([rule])


def test_a_name_of_other_letters_travels_as_idna() -> None:
    assert ascii_name("BÜCHER.example.") == "xn--bcher-kva.example"
    with pytest.raises(BadTarget):
        ascii_name("bü\u200bcher.example\u2028")


PRIVATE = [
    *("127.0.0.1", "127.255.255.254", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "100.100.100.200", "0.0.0.0", "192.0.0.192", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "192.88.99.1", "168.63.129.16", "203.0.113.1"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254"),
    *("fec0::1", "ff02::1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
    *("2001:db8::1", "2001:20::1", "100::1", "3fff::1", "5f00::1", "2606:4700::1111%eth0", "not an address", ""),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_out_on_the_internet_is_named(address: str) -> None:
    assert addresses.problem(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1"])
def test_an_address_of_the_internet_has_no_problem(address: str) -> None:
    assert addresses.problem(address) is None


@given(st.ip_addresses())
def test_no_address_passes_that_python_knows_better(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if addresses.problem(str(address)) is None:
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved
