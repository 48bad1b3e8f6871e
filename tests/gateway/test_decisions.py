"""What is decided without acting: registry, policy, fingerprints, and what may be stored of an outcome."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.contract import Caller, Workspace
from codespace.errors import CODES, Refusal
from codespace.gateway import lasting, policy
from codespace.gateway.registry import Registry
from codespace.gateway.request import Fingerprints, Request, require_same

W = Workspace("w", "/w")
ARGUMENTS = st.dictionaries(
    st.sampled_from(["patch", "command", "operation_key", "wait_seconds", "work_id"]),
    st.one_of(st.text(max_size=20), st.integers(), st.lists(st.text(max_size=5), max_size=3), st.none()),
)


def code_of(act: object, *arguments: object) -> str:
    with pytest.raises(Refusal) as caught:
        act(*arguments)  # type: ignore[operator]
    return caught.value.code


def test_the_only_workspace_may_be_left_out_and_a_choice_must_be_made_between_several() -> None:
    one = Registry({"a": Workspace("a", "/a")})
    assert one.find(None).id == "a"
    two = Registry({"a": Workspace("a", "/a"), "b": Workspace("b", "/b")})
    assert code_of(two.find, None) == "INVALID_ARGUMENT"
    assert code_of(two.find, "c\x1b[2J") == "WORKSPACE_NOT_FOUND"
    for workspace_id in (None, "a"):
        with pytest.raises(Refusal) as caught:
            Registry({}).find(workspace_id)
        assert (caught.value.code, "codespace init" in caught.value.next_step) == ("WORKSPACE_NOT_FOUND", True)


def test_an_unknown_id_is_shown_without_acting_on_a_terminal() -> None:
    with pytest.raises(Refusal, match=r"\\x1b") as caught:
        Registry({"a": Workspace("a", "/a")}).find("\x1b[2J")
    assert "\x1b" not in caught.value.message


def test_a_read_only_workspace_reads_and_nothing_else() -> None:
    workspace = Workspace("w", "/w", profile="read-only")
    policy.require_read(workspace)
    assert code_of(policy.require_write, workspace) == "UNAUTHORIZED"
    assert code_of(policy.require_exec, workspace, "linux-sandbox") == "UNAUTHORIZED"


def test_an_environment_that_is_no_execution_path_refuses_every_tool() -> None:
    workspace = Workspace("w", "/w", profile="workspace-write", environment_kind="linux-container")
    assert code_of(policy.require_read, workspace) == "SANDBOX_UNAVAILABLE"
    assert code_of(policy.require_write, workspace) == "SANDBOX_UNAVAILABLE"


@pytest.mark.parametrize(
    ("settings", "sandbox", "allowed"),
    [
        ({}, "none", True),
        ({"sandbox": "required"}, "none", False),
        ({"sandbox": "required"}, "linux-sandbox", True),
        ({"network": "enabled"}, "none", False),
        ({"network": "enabled"}, "landlock", False),
        ({"network": "enabled"}, "linux-sandbox", True),
    ],
)
def test_a_command_needs_the_isolation_that_its_workspace_demands(
    settings: dict[str, str], sandbox: str, allowed: bool
) -> None:
    workspace = Workspace("w", "/w", profile="workspace-write", **settings)  # type: ignore[arg-type]
    if allowed:
        policy.require_exec(workspace, sandbox)
    else:
        assert code_of(policy.require_exec, workspace, sandbox) == "SANDBOX_UNAVAILABLE"


@given(ARGUMENTS, ARGUMENTS)
def test_two_requests_have_one_fingerprint_exactly_when_they_would_do_the_same(
    first: dict[str, object], second: dict[str, object]
) -> None:
    fingerprints = Fingerprints(b"secret")

    def meaning(arguments: dict[str, object]) -> dict[str, object]:
        return {name: value for name, value in arguments.items() if name not in ("wait_seconds", "work_id")}

    same = fingerprints.of("t", W, first) == fingerprints.of("t", W, second)
    assert same == (meaning(first) == meaning(second))


async def test_long_texts_differ_by_their_last_character_and_are_told_apart_on_any_thread() -> None:
    fingerprints = Fingerprints(b"secret")
    seen = set()
    for size in (65_535, 65_536, 65_537, 1_000_000):
        for end in ("x", "y", "\udc80"):
            arguments = {"patch": "x" * size + end}
            taken = await fingerprints.take("t", W, arguments)
            assert taken == fingerprints.of("t", W, arguments)
            seen.add(taken)
    assert len(seen) == 12


def test_a_fingerprint_depends_on_tool_workspace_and_secret() -> None:
    base = Fingerprints(b"secret").of("t", W, {})
    assert base != Fingerprints(b"secret").of("u", W, {})
    assert base != Fingerprints(b"secret").of("t", Workspace("v", "/w"), {})
    assert base != Fingerprints(b"secret").of("t", Workspace("w", "/v"), {})
    assert base != Fingerprints(b"other").of("t", W, {})


def test_a_key_for_other_arguments_is_a_conflict_that_names_the_operation() -> None:
    request = Request("t", Workspace("w", "/w"), {}, "mine", Caller("memory"))
    require_same(request, "mine")
    with pytest.raises(Refusal) as caught:
        require_same(request, "theirs", operation_id="op-x")
    assert (caught.value.code, caught.value.operation_id) == ("OPERATION_KEY_CONFLICT", "op-x")


@pytest.mark.parametrize("code", ["INVALID_PATCH", "INVALID_COMMAND", "PROCESS_SPAWN_FAILED"])
def test_a_refusal_that_quotes_the_request_is_stored_without_its_words(code: str) -> None:
    refusal = Refusal(
        code, "CANARY", next_step="CANARY", details={"expected": "CANARY", "nearest": {"text": "CANARY"}, "path": "a"}
    )
    outer = Refusal("PATCH_ROLLED_BACK", "It was put back.", details={"cause": refusal.body()})
    assert "CANARY" not in str(lasting.refusal_body(refusal))
    assert "CANARY" not in str(lasting.refusal_body(outer))
    assert lasting.refusal_body(refusal)["details"] == {"path": "a"}


def test_other_refusals_are_stored_as_they_were_told() -> None:
    refusal = Refusal("VERSION_CONFLICT", "a is newer", details={"expected": "x", "actual": "y"}, operation_id="op-1")
    assert lasting.refusal_body(refusal) == refusal.body()
    assert Refusal.from_body(lasting.refusal_body(refusal)).body() == refusal.body()


def test_a_stored_result_has_neither_diff_nor_output() -> None:
    answer = {"status": "applied", "diff": "CANARY", "chunk": "CANARY", "command": ["CANARY"], "exit_code": 0}
    assert lasting.result(answer) == {"status": "applied", "exit_code": 0}


def test_every_code_has_a_meaning_and_a_next_step() -> None:
    assert all(code.meaning and code.next_step for code in CODES.values())
