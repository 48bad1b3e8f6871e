"""What a client may send: strictly read, never guessed, and a slip never turns a preview into a write."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespace import limits
from codespace.errors import Refusal
from codespace.protocol.schemas import input_schema
from codespace.protocol.tools import TABLE

LEAST: dict[str, dict[str, Any]] = {
    "workspace_info": {},
    "read": {"path": "a"},
    "read_many": {"paths": ["a"]},
    "find": {},
    "search": {"pattern": "x"},
    "apply_patch": {"patch": "p"},
    "operation_status": {"operation_id": "op-1"},
    "operation_undo": {"operation_id": "op-1"},
    "exec_command": {"command": ["true"]},
    "read_process": {"process_id": "proc-1"},
    "process_status": {"process_id": "proc-1"},
    "list_processes": {},
    "write_stdin": {"process_id": "proc-1", "data": ""},
    "resize_process": {"process_id": "proc-1", "rows": 24, "cols": 80},
    "terminate_process": {"process_id": "proc-1"},
    "approval_create": {"tool": "apply_patch", "arguments": {"patch": "p"}},
    "approval_status": {"approval_id": "appr-1"},
    "approval_resolve": {"approval_id": "appr-1", "decision": "deny"},
    "operation_resume": {"approval_id": "appr-1"},
    "work_open": {"title": "t"},
    "steer_status": {"work_id": "work-1"},
    "steer_claim_next": {"work_id": "work-1"},
    "steer_complete": {"work_id": "work-1", "intent_id": "int-1", "outcome": "done"},
    "work_finish": {"work_id": "work-1"},
}


def refusal(tool: str, /, **sent: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        TABLE[tool].take(LEAST[tool] | sent)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert "Nothing was done" in caught.value.message
    return caught.value


@pytest.mark.parametrize("tool", TABLE)
def test_the_least_call_is_taken_with_every_argument_filled_in(tool: str) -> None:
    taken, ignored = TABLE[tool].take(LEAST[tool])
    assert set(taken) == {argument.name for argument in TABLE[tool].arguments}
    assert taken.items() >= LEAST[tool].items()
    assert ignored == []


@pytest.mark.parametrize("tool", TABLE)
def test_null_for_an_optional_argument_counts_as_absent(tool: str) -> None:
    optional = [argument for argument in TABLE[tool].arguments if argument.name not in LEAST[tool]]
    taken, _ = TABLE[tool].take(LEAST[tool] | {argument.name: None for argument in optional})
    assert taken == TABLE[tool].take(LEAST[tool])[0]


@pytest.mark.parametrize("tool", TABLE)
def test_a_required_argument_that_is_missing_or_null_is_named(tool: str) -> None:
    for argument in TABLE[tool].arguments:
        if not argument.required:
            continue
        for sent in ({}, {argument.name: None}):
            with pytest.raises(Refusal, match=f"`{argument.name}` is missing") as caught:
                TABLE[tool].take({k: v for k, v in LEAST[tool].items() if k != argument.name} | sent)
            assert caught.value.details == {"argument": argument.name}


@pytest.mark.parametrize("tool", TABLE)
@pytest.mark.parametrize("wrong", [True, 3, 2.5, "3", ["x", 1], {"x": 1}])
def test_a_value_of_another_type_is_refused_with_the_fields_name(tool: str, wrong: Any) -> None:
    fits: dict[str, tuple[type, ...]] = {
        "text": (str,),
        "integer": (int,),
        "number": (int, float),
        "flag": (bool,),
        "text_list": (),
        "text_map": (),
        "object": (dict,),
    }
    for argument in TABLE[tool].arguments:
        if type(wrong) in fits[argument.kind]:
            continue
        details = refusal(tool, **{argument.name: wrong}).details
        assert details is not None
        assert details["argument"].startswith(argument.name)


@pytest.mark.parametrize(
    ("tool", "good", "bad"),
    [
        ("exec_command", {"wait_seconds": 50}, {"wait_seconds": 50.01}),
        ("exec_command", {"wait_seconds": 0}, {"wait_seconds": -1}),
        ("exec_command", {"wait_seconds": 0}, {"wait_seconds": float("nan")}),
        ("exec_command", {"timeout_seconds": 0.5}, {"timeout_seconds": 0}),
        ("exec_command", {"timeout_seconds": 0.5}, {"timeout_seconds": float("inf")}),
        ("exec_command", {"timeout_seconds": 0.5}, {"timeout_seconds": 10**400}),
        ("exec_command", {"command": ["x"] * 4096}, {"command": ["x"] * 4097}),
        ("exec_command", {"command": ["x"]}, {"command": []}),
        ("read_many", {"paths": ["x"] * 50}, {"paths": ["x"] * 51}),
        ("read_many", {"paths": ["x"]}, {"paths": []}),
        ("apply_patch", {"operation_key": "k" * 200}, {"operation_key": "k" * 201}),
        ("apply_patch", {"operation_key": "클라이언트 1"}, {"operation_key": "a\nb"}),
        ("apply_patch", {"operation_key": "k"}, {"operation_key": ""}),
        ("apply_patch", {"operation_key": "k"}, {"operation_key": "a\u202eb"}),
        ("apply_patch", {"expected_versions": {"a": "absent"}}, {"expected_versions": {"a": "sha256:00"}}),
        ("apply_patch", {"expected_versions": {"a": "sha256:" + "0" * 64}}, {"expected_versions": {"a": "absent\n"}}),
        ("read", {"start_line": 1}, {"start_line": 0}),
        ("read", {"start_line": 2.0}, {"start_line": 2.5}),
        ("read", {"path": "x" * 4096}, {"path": "x" * 4097}),
        ("read", {"path": "é"}, {"path": "\ud800"}),
        ("read", {"encoding": "base64"}, {"encoding": "hex"}),
        ("read_process", {"limit_bytes": 65536}, {"limit_bytes": 65537}),
        ("read_process", {"stream": "stderr"}, {"stream": "err"}),
        ("read_process", {"cursor": 0}, {"cursor": -1}),
        ("terminate_process", {"grace_seconds": 0}, {"grace_seconds": 31}),
        ("approval_resolve", {"decision": "grant"}, {"decision": "GRANT"}),
        ("exec_command", {"env": {"A": "b"}}, {"env": {"A": 1}}),
        ("exec_command", {"env": {"A": "b"}}, {"env": {"\ud800": "b"}}),
    ],
)
def test_ranges_are_kept_on_both_sides_of_each_bound(tool: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    TABLE[tool].take(LEAST[tool] | good)
    refusal(tool, **bad)


def test_exactly_one_of_id_and_key_is_needed() -> None:
    for sent in ({}, {"operation_id": "op-1", "operation_key": "k"}):
        with pytest.raises(Refusal, match="exactly one of them"):
            TABLE["operation_status"].take(sent)


def test_text_for_stdin_and_an_open_stdin_exclude_each_other() -> None:
    refusal("exec_command", stdin="", open_stdin=True)
    TABLE["exec_command"].take(LEAST["exec_command"] | {"stdin": "", "open_stdin": False})


@pytest.mark.parametrize(
    ("tool", "slip", "meant"),
    [
        ("apply_patch", "checkonly", "check_only"),
        ("apply_patch", "checkOnly", "check_only"),
        ("apply_patch", "check-only", "check_only"),
        ("apply_patch", "CHECK_ONLY", "check_only"),
        ("apply_patch", "chek_only", "check_only"),
        ("apply_patch", "check_olny", "check_only"),
        ("apply_patch", "check", "check_only"),
        ("apply_patch", "dry_run", "check_only"),
        ("apply_patch", "expected_version", "expected_versions"),
        ("apply_patch", "operationKey", "operation_key"),
        ("exec_command", "cmd", "command"),
        ("exec_command", "timeout", "timeout_seconds"),
        ("exec_command", "workspaceId", "workspace_id"),
        ("exec_command", "open_stdn", "open_stdin"),
        ("read", "paths", "path"),
        ("read", "startLine", "start_line"),
    ],
)
def test_a_slip_of_a_known_name_is_refused_naming_the_one_that_was_meant(tool: str, slip: str, meant: str) -> None:
    caught = refusal(tool, **{slip: True})
    assert f"`{meant}`" in caught.message
    assert f"`{meant}`" in caught.next_step


@pytest.mark.parametrize(("slip", "unit"), [("timeout_ms", True), ("timeout", True), ("timeoutSeconds", False)])
def test_a_name_that_says_another_unit_or_none_is_answered_with_the_unit(slip: str, unit: bool) -> None:
    assert ("in seconds" in refusal("exec_command", **{slip: 5000}).next_step) is unit


@pytest.mark.parametrize("tool", TABLE)
def test_claims_grant_nothing_and_are_named_as_ignored(tool: str) -> None:
    claims = {"approved": True, "user_id": "root", "network": True, "sandbox": "none", "admin": 1, "role": "operator"}
    taken, ignored = TABLE[tool].take(LEAST[tool] | claims)
    assert taken == TABLE[tool].take(LEAST[tool])[0]
    assert ignored == list(claims)


def test_a_hostile_unknown_name_is_shown_harmlessly_and_shortly() -> None:
    _, ignored = TABLE["find"].take({"\x1b[31m\u202e" + "z" * 5000: 1})
    assert "\x1b" not in ignored[0]
    assert len(ignored[0]) < 200


def test_unknown_names_cost_next_to_nothing_each() -> None:
    sent = {f"{number:03}{'q' * 61}": 1 for number in range(limits.UNKNOWN_ARGUMENTS)} | {"command": ["true"]}
    began = time.process_time()
    assert len(TABLE["exec_command"].take(sent)[1]) == limits.UNKNOWN_ARGUMENTS
    assert time.process_time() - began < 0.05  # of the event loop, which all share: it takes 2 ms, and took 200


def test_a_flood_of_unknown_names_is_refused_unread() -> None:
    refusal("find", **{f"unknown{index}": 1 for index in range(101)})


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("ls -l 'my file'", ["ls", "-l", "my file"]),
        ("git commit -m 'a b'", ["git", "commit", "-m", "a b"]),
        ("make | tee log", ["sh", "-c", "make | tee log"]),
        ("cd x && make", ["sh", "-c", "cd x && make"]),
        ("echo $HOME", ["sh", "-c", "echo $HOME"]),
        ("ls *.py", ["sh", "-c", "ls *.py"]),
        ("echo 'unbalanced", ["sh", "-c", "echo 'unbalanced"]),
        ("echo 'a | b'", ["echo", "a | b"]),
        ("", ["sh", "-c", ""]),
        ("echo 안녕", ["echo", "안녕"]),
        ('["ls", "-l"]', ["ls", "-l"]),
        (' ["sh", "-c", "a | b"]\n', ["sh", "-c", "a | b"]),
        ("[ -f x ]", ["[", "-f", "x", "]"]),
        ('["ls", 1]', ["[ls,", "1]"]),
    ],
)
def test_a_command_in_one_string_gets_its_argv_ready_to_send(command: str, argv: list[str]) -> None:
    caught = refusal("exec_command", command=command)
    ready = json.loads(caught.next_step.partition("Ready to send: ")[2])
    assert ready == argv
    TABLE["exec_command"].take({"command": ready})


@given(st.text(max_size=200))
def test_any_command_string_gets_an_argv_that_is_taken_or_advice(command: str) -> None:
    caught = refusal("exec_command", command=command)
    ready = json.loads(caught.next_step.partition("Ready to send: ")[2])
    assert ready == ["sh", "-c", command] or ready == shlex.split(command) or ready == json.loads(command)


@pytest.mark.parametrize("paths", ['["a", "안녕"]', '["a", "안녕"'])
def test_paths_in_one_string_of_json_come_back_ready_to_send(paths: str) -> None:
    told = refusal("read_many", paths=paths).next_step
    assert ('Ready to send: ["a", "안녕"]' in told) == paths.endswith("]")


def test_a_script_as_a_command_is_not_repeated() -> None:
    assert len(refusal("exec_command", command="x" * 100_000).next_step) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("tool", TABLE)
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_is_sent_is_taken_or_refused_and_what_is_taken_fits_the_schema(tool: str, data: st.DataObject) -> None:
    names = st.sampled_from([argument.name for argument in TABLE[tool].arguments]) | st.text(max_size=12)
    sent = data.draw(st.dictionaries(names, JSON, max_size=6))
    with contextlib.suppress(Refusal):  # every other exception is a fault
        taken, _ = TABLE[tool].take(sent)
        given_back = {name: value for name, value in taken.items() if value is not None}
        jsonschema.validate(given_back, input_schema(TABLE[tool]))
