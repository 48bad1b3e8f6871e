"""The machines as declared: pure, explained, with a way to an end from everywhere."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace

import pytest
from statemachine import State, StateMachine
from statemachine.exceptions import TransitionNotAllowed

from codespace.drive import decide, finals
from statemachines.approval import Approval
from statemachines.diagrams import MACHINES
from statemachines.execution import Execution
from statemachines.intent import Intent
from statemachines.patch import Patch
from statemachines.work import Work

each_machine = pytest.mark.parametrize("law", MACHINES, ids=lambda law: law.__name__)


def steps(law: type[StateMachine]) -> set[tuple[str, str, str]]:
    return {(state.id, step.event, step.target.id) for state in law.states for step in state.transitions}


def paths(law: type[StateMachine]) -> set[str]:
    return {f"{source} -> {target}" for source, _, target in steps(law)}


def events_of(law: type[StateMachine]) -> list[str]:
    return sorted({event for _, event, _ in steps(law)})


@each_machine
def test_what_drive_decides_is_what_a_fresh_engine_does_for_every_state_and_event(law: type[StateMachine]) -> None:
    for state in law.states:
        for event in [*events_of(law), "no_such_event"]:
            model = SimpleNamespace(state=state.id)
            try:
                law(model=model).send(event)
            except TransitionNotAllowed:
                with pytest.raises(LookupError):
                    decide(law, state.id, event)
            else:
                assert decide(law, state.id, event)[0] == model.state


@each_machine
def test_a_state_that_the_machine_does_not_have_is_never_moved(law: type[StateMachine]) -> None:
    with pytest.raises(LookupError):
        decide(law, "no_such_state", events_of(law)[0])


@each_machine
def test_no_step_depends_on_anything_but_state_and_event(law: type[StateMachine]) -> None:
    for state in law.states:
        for step in state.transitions:
            assert [spec.func for spec in step._specs if not spec.is_convention] == []
    assert [name for name, value in vars(law).items() if inspect.isfunction(value)] == []


@each_machine
def test_every_step_says_why_and_every_state_what_it_promises(law: type[StateMachine]) -> None:
    for source, event, _ in steps(law):
        assert decide(law, source, event)[1].endswith("."), (source, event)
    for state in law.states:
        assert state.name.endswith("."), state.id


@each_machine
def test_every_state_is_reached_from_the_first_and_leads_to_a_final_one(law: type[StateMachine]) -> None:
    def reached(start: str) -> set[str]:
        seen, front = {start}, [start]
        while front:
            here = front.pop()
            fresh = {target for source, _, target in steps(law) if source == here} - seen
            seen |= fresh
            front += fresh
        return seen

    assert reached(law.initial_state.id) == {state.id for state in law.states}
    for state in law.states:
        assert reached(state.id) & finals(law), state.id


@each_machine
def test_nothing_follows_a_final_state(law: type[StateMachine]) -> None:
    assert finals(law)
    assert not {source for source, _, _ in steps(law)} & finals(law)


def test_the_patch_machine_has_exactly_the_paths_of_the_design() -> None:
    assert paths(Patch) == {
        "minted -> planning",
        "planning -> snapshotting",
        "snapshotting -> applying",
        "applying -> verifying",
        "verifying -> applied",
        "planning -> checked",
        "minted -> rejected",
        "planning -> rejected",
        "snapshotting -> rejected",
        "applying -> restoring",
        "verifying -> restoring",
        "restoring -> failed_rolled_back",
        "restoring -> failed_partial",
        "applying -> unknown",
        "verifying -> unknown",
        "restoring -> unknown",
        "unknown -> applied",
        "unknown -> failed_rolled_back",
        "unknown -> failed_partial",
    }


def test_nothing_is_called_rejected_once_a_rename_may_have_happened() -> None:
    assert {source for source, _, target in steps(Patch) if target == "rejected"} == {
        "minted",
        "planning",
        "snapshotting",
    }


def test_applied_is_only_reached_by_reading_the_disk() -> None:
    assert {(source, event) for source, event, target in steps(Patch) if target == "applied"} == {
        ("verifying", "verified"),
        ("unknown", "found_applied"),
    }


def test_the_execution_machine_has_exactly_the_paths_of_the_design() -> None:
    assert paths(Execution) == {
        "minted -> spawning",
        "spawning -> running",
        "running -> draining",
        "draining -> exited",
        "spawning -> spawn_failed",
        "spawning -> lost",
        "running -> lost",
        "draining -> lost",
        "spawning -> unknown",
        "running -> unknown",
        "draining -> unknown",
        "unknown -> exited",
        "unknown -> spawn_failed",
        "unknown -> lost",
    }


def test_no_path_leads_back_to_spawning_so_a_command_starts_at_most_once() -> None:
    assert [source for source, _, target in steps(Execution) if target == "spawning"] == ["minted"]


def test_the_approval_machine_runs_a_hold_once_and_gives_a_grant_back_only_when_nothing_was_done() -> None:
    assert paths(Approval) == {
        "pending -> granted",
        "pending -> denied",
        "granted -> denied",
        "granted -> resuming",
        "resuming -> granted",
        "resuming -> consumed",
    }
    assert [event for source, event, target in steps(Approval) if (source, target) == ("resuming", "granted")] == [
        "workspace_was_busy"
    ]


def test_an_intent_is_frozen_once_it_is_claimed_and_a_work_closes_in_two_steps() -> None:
    assert {target for source, _, target in steps(Intent) if source == "claimed"} == {"done", "blocked"}
    assert paths(Work) == {"active -> closing", "closing -> closed"}


@each_machine
def test_a_machine_can_be_imported_without_anything_of_the_program(law: type[StateMachine]) -> None:
    code = (
        f"import sys, {law.__module__}\n"
        "heavy = {'trio', 'sqlite3', 'sqlite_utils', 'structlog', 'mcp', 'codespace'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_engine_is_the_strict_one_so_that_no_unknown_event_passes_silently() -> None:
    assert not Patch.allow_event_without_transition
    assert not Patch.catch_errors_as_events
    assert isinstance(Patch.minted, State)
