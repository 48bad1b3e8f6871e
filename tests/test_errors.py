"""Every refusal says its code, what happened and the next step, and survives a pipe."""

from __future__ import annotations

import json

import pytest

from codespace.errors import CODES, Refusal

CONTRACT = """
UNAUTHORIZED WORKSPACE_NOT_FOUND WORKSPACE_BUSY INVALID_ARGUMENT INVALID_PATCH INVALID_COMMAND PROCESS_SPAWN_FAILED
SANDBOX_UNAVAILABLE PATH_ESCAPE PROTECTED_PATH FILE_NOT_FOUND PATH_NOT_DIRECTORY NOT_TEXT FILE_TOO_LARGE
FILE_OPERATION_FAILED SYMLINK_REJECTED SPECIAL_FILE_REJECTED ADD_FILE_EXISTS MOVE_DESTINATION_EXISTS VERSION_CONFLICT
PATCH_ROLLED_BACK PATCH_PARTIAL OUTCOME_UNKNOWN SNAPSHOT_EXPIRED OPERATION_KEY_CONFLICT OPERATION_NOT_FOUND
PROCESS_NOT_FOUND PROCESS_EXITED OUTPUT_LIMIT LIMIT_REACHED TIMEOUT WORK_NOT_FOUND WORK_CLOSED INTENT_NOT_FOUND
INTENT_ALREADY_CLAIMED INTENT_NOT_EDITABLE INTENT_REVISION_CONFLICT APPROVAL_REQUIRED APPROVAL_NOT_FOUND
APPROVAL_CONFLICT APPROVAL_EXPIRED APPROVAL_AMBIGUOUS STORE_UNAVAILABLE SHUTTING_DOWN INTERNAL
"""


def test_the_codes_are_exactly_those_of_the_contract() -> None:
    assert set(CODES) == set(CONTRACT.split())


@pytest.mark.parametrize("code", CODES)
def test_every_code_says_what_it_means_and_the_way_on_in_whole_sentences(code: str) -> None:
    assert CODES[code].meaning.endswith(".")
    assert CODES[code].next_step.endswith(".")


def test_a_code_that_is_not_of_the_contract_cannot_be_raised() -> None:
    with pytest.raises(KeyError):
        Refusal("OOPS", "never")


def test_a_body_holds_what_is_known_and_leaves_the_rest_out() -> None:
    body = Refusal("VERSION_CONFLICT", "a.py changed.", details={"path": "a.py"}, operation_id="op-1").body()
    assert body == {
        "code": "VERSION_CONFLICT",
        "message": "a.py changed.",
        "next_step": CODES["VERSION_CONFLICT"].next_step,
        "retryable": False,
        "details": {"path": "a.py"},
        "operation_id": "op-1",
    }


def test_a_refusal_that_crossed_a_pipe_is_the_same_refusal() -> None:
    sent = Refusal("TIMEOUT", "It took too long.", next_step="Ask for less.", retryable=False, process_id="proc-1")
    assert Refusal.from_body(json.loads(json.dumps(sent.body()))).body() == sent.body()


def test_an_unknown_code_from_a_pipe_becomes_a_fault_of_codespace_itself() -> None:
    assert Refusal.from_body({"code": "NO_SUCH", "message": "?"}).code == "INTERNAL"


def test_only_what_may_succeed_later_is_called_retryable() -> None:
    retryable = {name for name, code in CODES.items() if code.retryable}
    assert retryable == {"WORKSPACE_BUSY", "OUTCOME_UNKNOWN", "TIMEOUT", "STORE_UNAVAILABLE", "SHUTTING_DOWN"}
