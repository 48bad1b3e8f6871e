"""The wire carries exactly the port: every verb, every type of it, and nothing that is not of its type."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.contract import (
    Chunk,
    Domain,
    FindResult,
    Match,
    PatchReport,
    ProcessState,
    Runner,
    SearchResult,
    SpawnRequest,
    Workspace,
    WorkspaceLimits,
)
from codespace.runner.uds import Uds
from codespace.runner.worker.codec import Codec, codec, recalled
from codespace.runner.worker.frames import BadFrame
from codespace.runner.worker.verbs import HELD, TELLINGS, TOLD, VERBS

STATE = ProcessState("proc-1", "exited", 1.5, {"combined": 1}, exit_code=3, termination="exited", notes=("a",))
VALUES: list[tuple[Any, Any]] = [
    (
        Workspace,
        Workspace(
            "main",
            "/root",
            profile="workspace-write",
            allowed_domains=(Domain("a.org", 443),),
            env={"A": "b"},
            limits=WorkspaceLimits(memory_bytes=5, cpu_seconds=1),
            protected_paths=("x", "y\udcff"),
        ),
    ),
    (SpawnRequest, SpawnRequest("proc-1", ("sh", "-c", "x"), ".", {}, 600, stdin=b"\0\xff")),
    (ProcessState, STATE),
    (Chunk, Chunk("aGk=", "base64", 2, True, 0, 0, STATE)),
    (FindResult, FindResult(("a", "b"), False, 2)),
    (SearchResult, SearchResult((Match("a", 1, 2, "text", ("b",)),), True, 3, "time", ("note",))),
    (tuple[str, PatchReport] | None, ("applied", PatchReport(True, refusal={"code": "INTERNAL"}))),
    (tuple[str, PatchReport] | None, None),
    (Mapping[str, Any], {"a": [1, None, {"b": True}]}),
]


def test_every_verb_of_the_port_is_on_the_wire_or_answered_without_it() -> None:
    port = {name for name, value in vars(Runner).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert port == set(VERBS) | TOLD | HELD
    assert {name for name in port if inspect.iscoroutinefunction(getattr(Runner, name))} == set(VERBS) | {"wait_exit"}
    assert set(TELLINGS) == TOLD


def test_the_gateways_side_has_every_verb_as_the_port_has_it() -> None:
    uds = Uds(None, None, None, None)  # type: ignore[arg-type] - asked for its methods alone
    for name, port in vars(Runner).items():
        if inspect.isfunction(port) and not name.startswith("_"):
            assert inspect.iscoroutinefunction(getattr(uds, name)) == inspect.iscoroutinefunction(port)
    assert not hasattr(uds, "dance")


@pytest.mark.parametrize(("hint", "value"), VALUES)
def test_a_value_comes_back_as_it_went(hint: Any, value: Any) -> None:
    encode, decode = codec(hint)
    assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize("hint", [hint for hint, _ in VALUES])
@given(
    found=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
)
def test_what_is_of_another_type_is_refused(hint: Any, found: Any) -> None:
    encode, decode = codec(hint)
    try:
        value = decode(found)
    except BadFrame:
        return
    assert encode(value) == found


@given(data=st.data())
def test_a_value_with_one_part_changed_is_refused_or_well_typed(data: st.DataObject) -> None:
    hint, value = data.draw(st.sampled_from(VALUES))
    encode, decode = codec(hint)
    sent = json.loads(json.dumps(encode(value)))
    if isinstance(sent, dict) and sent:
        name = data.draw(st.sampled_from(sorted(sent)))
        if data.draw(st.booleans()):
            del sent[name]
        else:
            sent[name] = data.draw(st.sampled_from([None, 1, "x", [], {}, True, 1.5, [1], {"a": 1}]))
    try:
        again = encode(decode(sent))
    except BadFrame:
        return
    assert again == sent


@pytest.mark.parametrize("hint", [set[str], complex, str | int, Mapping[int, str], object])
def test_a_type_without_a_form_is_found_when_the_table_is_made(hint: Any) -> None:
    with pytest.raises(TypeError):
        codec(hint)


def test_arguments_that_are_missing_or_too_many_are_refused() -> None:
    with pytest.raises(BadFrame):
        VERBS["leftovers"].decode_arguments({})
    with pytest.raises(BadFrame):
        VERBS["leftovers"].decode_arguments({"state_dir": None, "more": 1})
    assert VERBS["leftovers"].decode_arguments({"state_dir": None}) == ([None], {})


def test_what_is_recalled_is_turned_once_and_never_taken_for_another() -> None:
    turned: list[Any] = []

    def turn(value: Any) -> Any:
        turned.append(value)
        return codec(Workspace).encode(value) if isinstance(value, Workspace) else codec(Workspace).decode(value)

    part = recalled(Codec(turn, turn))
    one, other = Workspace("one", "/one", env={"A": "b"}), Workspace("other", "/other")
    for workspace in (one, one, other, one, one):
        sent = json.loads(json.dumps(part.encode(workspace)))
        assert part.decode(sent) == workspace
    assert len(turned) == 6
    with pytest.raises(BadFrame):
        part.decode({"id": "one"})
