"""What is promised, and the tests that fail when a promise is broken.

    python tests/requirements.py            # write docs/evidence.md
    python tests/requirements.py --check    # fail where it is not what this file says

A promise that is not kept yet is marked open with the reason; all others need a test that exists.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence.md"


@dataclass(frozen=True)
class Requirement:
    """One promise to a user. `open` says why it is not kept, or not wholly kept, yet."""

    id: str
    promise: str
    tests: tuple[str, ...] = ()
    open: str | None = None


FILES = "tests/acceptance/test_files.py::"
COMMANDS = "tests/acceptance/test_commands.py::"
HOLDS = "tests/acceptance/test_holds.py::"
RECOVERY = "tests/acceptance/test_recovery.py::"
ENDINGS = "tests/acceptance/test_endings.py::"
SEVERAL = "tests/acceptance/test_several_daemons.py::"
SECRETS = "tests/acceptance/test_secrets.py::"
HOSTILE = "tests/security/test_hostile_input.py::"
CONFIG = "tests/security/test_hostile_config.py::"

REQUIREMENTS: tuple[Requirement, ...] = (
    # Trust
    Requirement(
        "T1",
        "One operator, one machine account; the operator alone registers directories, by configuration. No tool adds, "
        "widens or edits a workspace.",
        (
            HOSTILE + "test_no_tool_adds_widens_or_edits_a_workspace",
            CONFIG + "test_without_a_registered_workspace_nothing_is_reachable",
        ),
    ),
    Requirement(
        "T2",
        "Knowing a workspace, work, process, operation or approval id grants nothing; claims in arguments and texts in "
        "intents, files or patches grant nothing.",
        (
            FILES + "test_a_read_only_workspace_reads_finds_and_searches_and_refuses_all_else",
            HOSTILE + "test_claims_in_arguments_change_nothing",
            HOLDS + "test_a_grant_is_for_what_was_shown_and_for_nothing_newer",
        ),
    ),
    Requirement(
        "T3",
        "File permissions, command isolation and network enforcement are three separate controls; workspace_info "
        "states what is in force for each, from a probe.",
        (FILES + "test_workspace_info_states_what_is_in_force",),
    ),
    Requirement(
        "T4",
        "HTTP requires a static Bearer unless `--no-auth` was said, compared in constant time; a failure is a "
        "transport failure and leaves no operation; the token appears in no log, error or page.",
        (SECRETS + "test_the_token_is_in_no_log_no_answer_and_no_database",),
    ),
    Requirement(
        "T5",
        "Host and Origin are checked; a page on another origin, a rebound name or a form post can do nothing.",
        ("tests/security/test_http_door.py::test_a_foreign_page_a_rebound_name_and_a_form_post_do_nothing",),
    ),
    Requirement(
        "T6",
        "Configuration, tokens, database, state and the program's own installation live outside every root and "
        "readable path; otherwise the daemon refuses to start and says which and why.",
        (CONFIG + "test_the_daemon_does_not_start_with_its_own_things_inside_a_root",),
    ),
    # Files
    Requirement(
        "F1",
        "Every path is relative and stays below its root; absolute, escaping, NUL and control characters are refused.",
        (
            FILES + "test_no_path_leads_out_and_no_link_or_device_is_opened",
            HOSTILE + "test_no_spelling_of_a_path_reaches_the_outside",
        ),
    ),
    Requirement(
        "F2",
        "No symlink is followed, no device, socket or FIFO is opened, also when another process swaps them at the same "
        "moment; one primitive does read, preflight, write, hash and restore; find and search see only the root.",
        (
            FILES + "test_no_path_leads_out_and_no_link_or_device_is_opened",
            HOSTILE + "test_links_devices_and_sockets_are_refused_by_every_tool",
        ),
    ),
    Requirement(
        "F3",
        "read-only workspaces allow read, find, search and nothing else; workspace-write allows patch and exec.",
        (FILES + "test_a_read_only_workspace_reads_finds_and_searches_and_refuses_all_else",),
    ),
    Requirement(
        "F3a",
        "hidden_paths exist for no tool, error or journal, and for no sandboxed command.",
        (HOSTILE + "test_hidden_paths_exist_for_no_tool_and_no_error",),
        open="commands see them until there is a sandbox",
    ),
    Requirement(
        "F4",
        "Reads say the version of the whole file, ranges, line endings and truncation; finds and searches say when "
        "they are cut.",
        (FILES + "test_an_agent_reads_previews_applies_and_reads_back",),
    ),
    # Patches
    Requirement(
        "P1",
        "V4A exactly as recorded in the corpus. No silent fallback to another patch tool.",
        (),
    ),
    Requirement(
        "P2",
        "Nothing is written unless everything can be; a version that is not the expected one refuses the patch.",
        (
            FILES + "test_a_patch_made_for_another_version_is_refused_and_nothing_is_written",
            HOSTILE + "test_a_patch_that_fails_at_its_last_operation_writes_nothing",
        ),
    ),
    Requirement(
        "P3",
        "add and move never overwrite; modes, owners and attributes survive.",
        (HOSTILE + "test_add_and_move_never_overwrite_and_modes_survive",),
    ),
    Requirement(
        "P4",
        "`applied` is only said after the disk was hashed; a mismatch restores; bytes that a third party put under the "
        "name are never thrown away (limit: a program that writes through a descriptor of the replaced file).",
        (),
    ),
    Requirement(
        "P5",
        "A key repeats its result and never its effect; the same key with other arguments is a conflict; across "
        "restarts too.",
        (
            RECOVERY + "test_a_patch_whose_reply_was_lost_is_found_by_its_key",
            SEVERAL + "test_a_key_used_at_one_daemon_is_known_at_the_other_that_shares_its_database",
        ),
    ),
    Requirement(
        "P6",
        "After a crash at any instant each file is whole and the ledger says what happened.",
        (RECOVERY + "test_a_client_killed_in_the_middle_of_a_patch_leaves_it_whole_or_absent",),
        open="shown for a killed client; kill points inside the transaction are still to come",
    ),
    Requirement("P7", "Undo restores exactly, or refuses.", open="operation_undo is still to come"),
    Requirement(
        "P8",
        "The ledger holds hashes, never patch text.",
        (SECRETS + "test_no_secret_is_in_the_log_the_database_or_an_error",),
    ),
    # Processes
    Requirement(
        "X1",
        "argv without a shell, cwd in the root, a clean environment, no inherited descriptor.",
        (
            COMMANDS + "test_the_environment_is_clean_and_loader_variables_are_refused",
            HOSTILE + "test_argv_goes_to_the_program_byte_for_byte_and_no_descriptor_leaks_in",
        ),
    ),
    Requirement(
        "X2",
        "The request's end does not end the process; the process's end is always known: exit code, signal, time "
        "limit, terminated, lost.",
        (
            RECOVERY + "test_a_client_killed_in_the_middle_of_a_command_does_not_end_it",
            COMMANDS + "test_a_failing_command_is_a_result_and_not_an_error",
            COMMANDS + "test_a_command_over_its_time_limit_is_ended_and_says_so",
            COMMANDS + "test_a_long_command_is_polled_and_terminated_with_its_whole_tree",
            ENDINGS + "test_a_killed_http_daemon_leaves_no_process_and_its_successor_says_what_became_of_them",
        ),
    ),
    Requirement(
        "X3",
        "Output by cursor, bounded, streams apart, whole characters, loss counted; readers never steal from each "
        "other.",
        (
            COMMANDS + "test_output_is_collected_by_cursor_and_readers_do_not_steal",
            COMMANDS + "test_characters_are_never_split_by_a_small_limit",
            COMMANDS + "test_an_oversized_log_is_bounded_and_its_loss_is_counted",
        ),
    ),
    Requirement(
        "X4",
        "Ending a process ends its whole tree; the daemon's end, even by SIGKILL, leaves none.",
        (
            COMMANDS + "test_a_long_command_is_polled_and_terminated_with_its_whole_tree",
            ENDINGS + "test_an_ordered_end_takes_every_command_with_it",
            ENDINGS + "test_a_killed_stdio_daemon_leaves_no_process",
            ENDINGS + "test_a_command_that_ignores_every_signal_does_not_hold_up_the_end",
        ),
    ),
    Requirement(
        "X5",
        "One mutation at a time in a root, across all daemons (`occupancy: shared` exempts processes); the others get "
        "WORKSPACE_BUSY with what holds it; reads go on.",
        (
            COMMANDS + "test_while_a_command_lives_patches_are_busy_and_reads_go_on",
            COMMANDS + "test_a_shared_workspace_patches_while_a_command_lives",
            SEVERAL + "test_a_command_of_one_daemon_makes_the_root_busy_for_the_other_until_it_is_gone",
        ),
    ),
    Requirement(
        "X6",
        "An exec with a key is started at most once.",
        (RECOVERY + "test_a_command_with_a_key_is_started_at_most_once",),
    ),
    # Isolation
    Requirement(
        "I1",
        "With the Linux helper a command sees only its root (writable), system paths (read-only) and a private /tmp; "
        "no secrets, sockets, other processes or host knobs.",
        open="the sandbox is still to come; workspace_info says `none`",
    ),
    Requirement(
        "I2",
        "`restricted` has no network at all when enforced; without a helper it is told as `none`, never implied.",
        (FILES + "test_workspace_info_states_what_is_in_force",),
        open="enforcement comes with the sandbox; that there is none is told",
    ),
    Requirement(
        "I3",
        "`enabled` needs the helper, goes through the proxy only, reaches listed names only; private addresses and "
        "rebinding are refused.",
        open="the proxy is still to come; `enabled` refuses to run",
    ),
    Requirement(
        "I4",
        "No patch, undo or command changes what git, editors or agents run by themselves on the host; repositories and "
        "protected files made anew are reported.",
        (
            FILES + "test_no_path_leads_out_and_no_link_or_device_is_opened",
            HOSTILE + "test_no_spelling_of_a_protected_path_is_patched",
        ),
        open="kept for patches; commands can until there is a sandbox",
    ),
    Requirement(
        "I5",
        "The patch helper, the search and the worker are confined or separated as workspace_info says.",
        open="the patch helper's confinement and the worker are still to come",
    ),
    # Holds
    Requirement(
        "H1",
        "`confirm` and `operator` holds run only after a grant, once, and only exactly what was shown; the result is "
        "stored and replayed; deny is final; holds expire.",
        (
            HOLDS + "test_a_held_patch_is_granted_and_resumed_exactly_once",
            HOLDS + "test_a_denied_patch_never_runs",
            HOLDS + "test_a_grant_is_for_what_was_shown_and_for_nothing_newer",
            HOLDS + "test_a_held_command_is_started_once_after_its_grant",
            "tests/testing/test_bench.py::test_a_hold_expires_when_stored_time_moves_on",
        ),
    ),
    Requirement(
        "H2",
        "A hold never widens a profile; policy is checked again at resume.",
        ("tests/testing/test_bench.py::test_a_grant_does_not_outlive_the_profile_it_was_given_under",),
    ),
    Requirement(
        "H3",
        "In `operator` mode no path open to the MCP caller through CodeSpace, a command that it runs, or a web page "
        "can grant (limit: a client with its own shell under the same account).",
        open="approvals `operator` refuses to run until it is done",
    ),
    Requirement(
        "H4",
        "The body exists only while pending, granted or resuming; then digest metadata, and the bytes are gone from "
        "the file.",
        (SECRETS + "test_a_held_body_is_gone_from_the_database_once_it_was_used",),
    ),
    Requirement(
        "H5",
        "A crash while resuming never runs an exec twice and settles a patch from the journal.",
        open="shown with crash recovery",
    ),
    # Work
    Requirement(
        "W1",
        "Drafts are invisible to the agent; a claim is atomic and frozen; work_finish refuses while input waits; stop "
        "stops.",
        open="works and the inbox are still to come",
    ),
    # Record
    Requirement(
        "A1",
        "Every decision and change is in the audit chain; edits, gaps and reorderings are found by `audit verify`, a "
        "cut tail by an exported head.",
        (),
    ),
    Requirement(
        "A1a",
        "Hostile text (names, patches, output, argv) never acts on a terminal, page or log: one escaping function for "
        "all.",
        (HOSTILE + "test_hostile_text_comes_back_escaped_in_errors",),
    ),
    Requirement(
        "A2",
        "Logs are structured, on stderr, redacted; canary secrets never show up in logs, ledger, errors or pages.",
        (
            SECRETS + "test_no_secret_is_in_the_log_the_database_or_an_error",
            SECRETS + "test_the_token_is_in_no_log_no_answer_and_no_database",
        ),
    ),
    Requirement(
        "A3",
        "No model is called, nothing phones home.",
        ("tests/security/test_no_calls_home.py::test_a_daemon_at_work_opens_no_connection",),
    ),
    # Protocol
    Requirement(
        "M1",
        "MCP 2025-11-25 on stdio and Streamable HTTP; 2026-07-28 with the same meaning; no client needs more than "
        "initialize, tools/list, tools/call.",
        (
            FILES + "test_both_eras_of_the_protocol_mean_the_same",
            FILES + "test_the_tools_tell_the_truth_about_themselves",
        ),
    ),
    Requirement(
        "M2",
        "stdout carries the protocol only; EOF, SIGTERM and cancellation end what they should, in time.",
        (
            ENDINGS + "test_nothing_but_the_protocol_is_on_stdout_whatever_a_command_prints",
            ENDINGS + "test_end_of_input_ends_an_idle_stdio_daemon_within_a_second",
            ENDINGS + "test_sigterm_ends_an_idle_stdio_daemon_within_a_second",
            COMMANDS + "test_a_cancelled_wait_leaves_the_command_running",
        ),
    ),
    Requirement(
        "M3",
        "Every error has code, message, next step; no traceback, no hang.",
        (
            HOSTILE + "test_any_json_value_as_an_argument_is_answered_in_the_contracts_words",
            ENDINGS + "test_garbage_on_the_wire_is_answered_or_ignored_and_the_daemon_goes_on",
        ),
    ),
)


def faults(requirements: Sequence[Requirement] = REQUIREMENTS, root: Path = ROOT) -> list[str]:
    """Return one line for each promise without evidence, each test that does not exist, each id used twice."""
    found = []
    ids = [requirement.id for requirement in requirements]
    found += [f"{name}: listed twice" for name in sorted({name for name in ids if ids.count(name) > 1})]
    for requirement in requirements:
        if not requirement.tests and requirement.open is None:
            found.append(f"{requirement.id}: neither open nor tested")
        found += [f"{requirement.id}: no such test: {test}" for test in requirement.tests if not _exists(test, root)]
    return found


def _exists(test: str, root: Path) -> bool:
    path, _, name = test.partition("::")
    file = root / path
    if not file.is_file():
        return False
    tree = ast.parse(file.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return name.startswith("test_") and any(
        isinstance(node, functions) and node.name == name for node in ast.walk(tree)
    )


def evidence() -> str:
    """Return docs/evidence.md."""
    lines = [
        "# Evidence",
        "",
        "Each promise and the tests that fail when it is broken. Printed by `python tests/requirements.py`.",
        "",
    ]
    for requirement in REQUIREMENTS:
        lines += [f"## {requirement.id}", "", requirement.promise, ""]
        if requirement.open is not None:
            lines += [f"Open: {requirement.open}.", ""]
        lines += [f"* `{test}`" for test in requirement.tests]
        lines += [""] if requirement.tests else []
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write docs/evidence.md, or compare it; return 1 where something is amiss."""
    parser = argparse.ArgumentParser(description="docs/evidence.md from tests/requirements.py")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    found = faults()
    if check and (not EVIDENCE.exists() or EVIDENCE.read_text() != evidence()):
        found.append("docs/evidence.md is not current: run `python tests/requirements.py`")
    for fault in found:
        print(fault, file=sys.stderr)
    if not check:
        EVIDENCE.write_text(evidence())
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
