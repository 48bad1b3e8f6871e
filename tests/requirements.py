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
STEERING = "tests/acceptance/test_steering.py::"
WORKS = "tests/gateway/test_works.py::"
INBOX = "tests/http/test_inbox.py::"
HOLDS = "tests/acceptance/test_holds.py::"
OPERATED = "tests/gateway/test_operator.py::"
COMMANDS_HELD = "tests/gateway/test_held_commands.py::"
BROWSER = "tests/browser/"
RECOVERY = "tests/acceptance/test_recovery.py::"
ENDINGS = "tests/acceptance/test_endings.py::"
SEVERAL = "tests/acceptance/test_several_daemons.py::"
SECRETS = "tests/acceptance/test_secrets.py::"
HOSTILE = "tests/security/test_hostile_input.py::"
BOX = "tests/sandbox/"
WORKER = "tests/worker/"
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
            STEERING + "test_a_text_is_an_instruction_and_grants_nothing",
            STEERING + "test_the_id_of_a_work_grants_nothing_in_another_workspace",
            INBOX + "test_only_the_operators_token_opens_any_route_and_it_opens_nothing_else",
        ),
    ),
    Requirement(
        "T3",
        "File permissions, command isolation and network enforcement are three separate controls; workspace_info "
        "states what is in force for each, from a probe.",
        (
            FILES + "test_workspace_info_states_what_is_in_force",
            BOX + "test_probe.py::test_a_real_bubblewrap_isolates_by_its_witnesses",
            BOX + "test_probe.py::test_without_a_sandbox_only_a_restricted_and_optional_workspace_runs_and_it_is_said",
            BOX + "test_report.py::test_with_a_sandbox_every_area_is_told",
            "tests/gateway/test_information.py::test_each_layer_is_told_as_it_was_found",
            "tests/helper/test_confine.py::test_only_the_root_and_the_journals_can_be_read_and_written",
        ),
    ),
    Requirement(
        "T4",
        "HTTP requires a static Bearer unless `--no-auth` was said, compared in constant time; a failure is a "
        "transport failure and leaves no operation; the token appears in no log, error or page.",
        (
            SECRETS + "test_the_token_is_in_no_log_no_answer_and_no_database",
            "tests/http/test_guard.py::test_without_the_token_the_answer_is_unauthorized_and_nothing_happens",
            "tests/http/test_exposure.py::test_no_auth_is_for_this_machine_only_even_with_a_token",
            "tests/http/test_exposure.py::test_a_token_is_made_once_for_the_owner_alone",
            "tests/http/test_http.py::test_the_token_is_in_no_answer_and_no_log",
            "tests/security/test_http_door.py::test_without_the_right_token_nothing_is_said",
            "tests/http/test_guard.py::test_two_authorization_headers_are_none",
            "tests/security/test_http_door.py::test_a_failed_request_leaves_no_operation",
        ),
    ),
    Requirement(
        "T5",
        "Host and Origin are checked; a page on another origin, a rebound name or a form post can do nothing.",
        (
            "tests/security/test_http_door.py::test_a_foreign_page_a_rebound_name_and_a_form_post_do_nothing",
            "tests/http/test_guard.py::test_a_rebound_name_is_misdirected_on_every_route",
            "tests/http/test_guard.py::test_a_request_without_a_host_or_with_two_gets_nowhere",
            "tests/http/test_guard.py::test_a_page_of_another_origin_is_refused_on_every_route_and_an_own_one_is_not",
            "tests/http/test_guard.py::test_a_form_post_can_do_nothing_even_without_a_token",
            BROWSER + "test_attacks.py::test_a_page_of_another_origin_can_neither_grant_nor_read_nor_frame",
            BROWSER + "test_attacks.py::test_a_name_that_was_rebound_to_this_machine_gets_no_page",
        ),
    ),
    Requirement(
        "T6",
        "Configuration, tokens, database, state and the program's own installation live outside every root and "
        "readable path; otherwise the daemon refuses to start and says which and why.",
        (
            CONFIG + "test_the_daemon_does_not_start_with_its_own_things_inside_a_root",
            "tests/settings/test_roots.py::test_nothing_is_open_within_a_directory_of_codespaces_own",
            "tests/settings/test_roots.py::test_what_codespace_keeps_is_never_inside",
            "tests/settings/test_roots.py::test_the_configuration_file_is_never_inside_nor_its_target",
            "tests/settings/test_roots.py::test_codespaces_own_installation_is_never_inside",
        ),
    ),
    # Files
    Requirement(
        "F1",
        "Every path is relative and stays below its root; absolute, escaping, NUL and control characters are refused.",
        (
            FILES + "test_no_path_leads_out_and_no_link_or_device_is_opened",
            HOSTILE + "test_no_spelling_of_a_path_reaches_the_outside",
            "tests/beneath/test_names.py::test_a_cleaned_path_is_its_own_clean_form_and_never_leaves",
            "tests/beneath/test_names.py::test_a_path_with_controls_or_no_text_or_no_end_is_refused",
            "tests/beneath/test_names.py::test_a_path_that_leads_out_is_an_escape",
        ),
    ),
    Requirement(
        "F2",
        "No symlink is followed, no device, socket or FIFO is opened, also when another process swaps them at the same "
        "moment; one primitive does read, preflight, write, hash and restore; find and search see only the root.",
        (
            FILES + "test_no_path_leads_out_and_no_link_or_device_is_opened",
            HOSTILE + "test_links_devices_and_sockets_are_refused_by_every_tool",
            "tests/beneath/test_races.py::test_a_directory_swapped_for_a_link_never_leads_out",
            "tests/beneath/test_races.py::test_a_file_swapped_for_a_link_never_leads_out",
            "tests/beneath/test_races.py::test_a_file_swapped_for_a_fifo_never_hangs_the_reader",
            "tests/beneath/test_writing.py::test_no_verb_goes_through_a_link",
            "tests/runner/test_search.py::test_a_directory_swapped_for_a_link_never_leads_out_nor_to_what_is_hidden",
        ),
    ),
    Requirement(
        "F3",
        "read-only workspaces allow read, find, search and nothing else; workspace-write allows patch and exec.",
        (
            FILES + "test_a_read_only_workspace_reads_finds_and_searches_and_refuses_all_else",
            "tests/gateway/test_decisions.py::test_a_read_only_workspace_reads_and_nothing_else",
        ),
    ),
    Requirement(
        "F3a",
        "hidden_paths exist for no tool, error or journal, and for no sandboxed command.",
        (
            HOSTILE + "test_hidden_paths_exist_for_no_tool_and_no_error",
            HOSTILE + "test_what_is_hidden_later_is_told_by_no_record_either_and_the_operator_still_sees_it",
            "tests/beneath/test_reading.py::test_hidden_names_exist_for_no_verb",
            "tests/runner/test_patcher.py::test_a_hidden_file_is_absent_to_a_patch",
            "tests/runner/test_patcher.py::test_protected_and_hidden_paths_are_refused_whether_they_exist_or_not",
            "tests/runner/test_search.py::test_what_is_hidden_by_a_glob_that_ripgrep_reads_otherwise_is_not_shown",
            "tests/runner/test_search_anew.py::test_lines_are_those_of_the_file_that_is_there_and_not_of_what_ripgrep_was_led_to",
            "tests/runner/test_search_anew.py::test_a_name_is_told_and_counted_only_where_it_is_there",
            "tests/sandbox/test_files.py::test_hidden_paths_cannot_be_read_listed_replaced_or_changed",
        ),
    ),
    Requirement(
        "F4",
        "Reads say the version of the whole file, ranges, line endings and truncation; finds and searches say when "
        "they are cut.",
        (
            FILES + "test_an_agent_reads_previews_applies_and_reads_back",
            "tests/runner/test_files.py::test_a_range_has_its_lines_and_the_whole_file_s_version",
            "tests/runner/test_files.py::test_a_cut_comes_behind_a_whole_line_and_is_said",
            "tests/runner/test_lines.py::test_line_facts_hold_wherever_the_blocks_are_cut",
            "tests/runner/test_search.py::test_only_files_that_were_asked_for_count_as_searched",
            "tests/runner/test_search.py::test_a_cut_answer_is_the_first_part_and_says_so",
            "tests/protocol/test_prose.py::test_a_search_tells_what_it_left_out",
        ),
    ),
    # Patches
    Requirement(
        "P1",
        "V4A exactly as recorded in the corpus. No silent fallback to another patch tool.",
        (
            "tests/parity/test_transaction.py::test_every_case_of_the_corpus_ends_as_recorded",
            "tests/parity/test_engine.py::test_an_applied_case_gives_the_recorded_tree",
        ),
    ),
    Requirement(
        "P2",
        "Nothing is written unless everything can be; a version that is not the expected one refuses the patch.",
        (
            FILES + "test_a_patch_made_for_another_version_is_refused_and_nothing_is_written",
            FILES + "test_a_chunk_without_a_place_is_explained_and_one_that_is_in_already_is_told",
            HOSTILE + "test_a_patch_that_fails_at_its_last_operation_writes_nothing",
            "tests/runner/test_patcher.py::test_an_expected_version_of_an_untouched_file_refuses_the_patch",
            "tests/runner/test_patcher.py::test_an_expected_version_is_refused_where_a_file_is_gone_or_there_again",
        ),
    ),
    Requirement(
        "P3",
        "add and move never overwrite; modes, owners and attributes survive.",
        (
            HOSTILE + "test_add_and_move_never_overwrite_and_modes_survive",
            "tests/runner/test_patcher.py::test_an_update_keeps_mode_and_attributes_and_breaks_a_hard_link",
            "tests/runner/test_patcher.py::test_a_move_takes_mode_and_attributes_along",
            "tests/beneath/test_writing.py::test_metadata_is_copied_with_attributes_and_none_that_were_not_there",
            "tests/runner/test_patcher.py::test_a_file_that_appeared_where_one_is_added_is_left_alone",
        ),
    ),
    Requirement(
        "P4",
        "`applied` is only said after the disk was hashed; a mismatch restores; bytes that a third party put under the "
        "name are never thrown away (limit: a program that writes through a descriptor of the replaced file).",
        (
            "tests/runner/test_patcher.py::test_a_staged_file_that_was_replaced_is_never_called_applied",
            "tests/runner/test_patcher.py::test_bytes_written_into_the_replaced_file_are_rescued_and_named",
            "tests/runner/test_patcher.py::test_a_file_changed_after_the_plan_is_swapped_back_and_nothing_of_the_patch_stays",
            "tests/statemachines/test_law.py::test_applied_is_only_reached_by_reading_the_disk",
            "tests/crash/test_races.py::test_the_target_replaced_all_the_time",
            "tests/crash/test_races.py::test_the_staged_file_replaced_all_the_time",
            "tests/crash/test_races.py::test_a_parent_replaced_by_a_link_to_the_outside_all_the_time",
            "tests/crash/test_races.py::test_the_root_replaced_by_another_directory_all_the_time",
        ),
    ),
    Requirement(
        "P5",
        "A key repeats its result and never its effect; the same key with other arguments is a conflict; across "
        "restarts too.",
        (
            RECOVERY + "test_a_patch_whose_reply_was_lost_is_found_by_its_key",
            SEVERAL + "test_a_key_used_at_one_daemon_is_known_at_the_other_that_shares_its_database",
            "tests/gateway/test_patching.py::test_two_calls_with_one_key_at_the_same_time_have_one_effect",
            "tests/gateway/test_patching.py::test_a_key_repeats_a_refusal_and_conflicts_with_other_arguments",
            "tests/gateway/test_patching.py::test_a_key_is_refused_for_a_patch_that_was_made_for_other_versions",
            "tests/gateway/test_execution.py::test_a_key_is_refused_for_a_command_that_differs_in_anything",
            "tests/gateway/test_namesakes.py::test_a_key_that_a_namesake_took_is_never_answered_with_what_was_done_there",
        ),
    ),
    Requirement(
        "P6",
        "After a crash at any instant each file is whole and the ledger says what happened.",
        (
            RECOVERY + "test_a_client_killed_in_the_middle_of_a_patch_leaves_it_whole_or_absent",
            RECOVERY + "test_a_daemon_killed_in_the_middle_of_a_patch_is_settled_by_its_successor_without_a_trace",
            "tests/gateway/test_patching.py::test_cancelled_at_any_moment_the_tree_is_whole_and_the_ledger_says_which",
            "tests/crash/test_helper_dies.py::test_whatever_moment_the_helper_dies_in_the_tree_is_whole_and_the_ledger_true",
            "tests/crash/test_helper_dies.py::test_whatever_moment_the_next_helper_dies_in_while_it_settles_the_answer_is_the_same",
            "tests/crash/test_daemon_dies.py::test_whatever_moment_the_daemon_dies_in_the_next_one_says_what_is_true",
            "tests/crash/test_disks.py::test_a_disk_that_turns_read_only_behind_the_renames_leaves_it_unknown_until_it_is_writable_again",
            "tests/crash/test_disks.py::test_a_filesystem_without_the_flags_of_rename_is_named_and_every_patch_of_it_is_whole",
            "tests/crash/test_disks.py::test_a_quota_that_is_hit_in_the_middle_of_a_patch_refuses_it_and_leaves_nothing",
            "tests/gateway/test_predecessors.py::test_the_next_patch_in_the_root_settles_it_first",
            "tests/gateway/test_predecessors.py::test_one_that_is_older_than_a_day_waits_for_the_operator_and_blocks_nobody",
        ),
    ),
    Requirement(
        "P7",
        "Undo restores exactly, or refuses.",
        (
            "tests/gateway/test_undo.py::test_an_undo_makes_everything_as_it_was_and_its_own_undo_takes_that_back",
            "tests/gateway/test_undo.py::test_an_undo_is_refused_once_a_file_is_another_and_nothing_is_written",
            "tests/gateway/test_undo.py::test_a_damaged_snapshot_is_never_written_back",
            "tests/helper/test_model.py::test_what_is_applied_is_what_the_model_says_and_undo_is_identity_byte_for_byte_and_mode_for_mode",
        ),
    ),
    Requirement(
        "P8",
        "The ledger holds hashes, never patch text.",
        (
            SECRETS + "test_no_secret_is_in_the_log_the_database_or_an_error",
            "tests/gateway/test_decisions.py::test_a_refusal_that_quotes_the_request_is_stored_without_its_words",
        ),
    ),
    # Processes
    Requirement(
        "X1",
        "argv without a shell, cwd in the root, a clean environment, no inherited descriptor.",
        (
            COMMANDS + "test_the_environment_is_clean_and_loader_variables_are_refused",
            HOSTILE + "test_argv_goes_to_the_program_byte_for_byte_and_no_descriptor_leaks_in",
            "tests/runner/test_supervisor.py::test_no_descriptor_of_the_daemon_reaches_a_command",
            "tests/runner/test_supervisor.py::test_the_environment_holds_nothing_of_the_daemon_s",
            "tests/runner/test_environment.py::test_the_environment_is_made_from_nothing",
            "tests/runner/test_environment.py::test_a_caller_may_not_set",
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
            "tests/runner/test_supervisor.py::test_a_killed_monitor_makes_it_lost_and_leaves_nothing",
            "tests/runner/test_supervisor.py::test_who_reads_the_end_of_the_output_hears_how_it_ended",
            BOX + "test_supervised_limits.py::test_processor_time_that_is_used_up_ends_the_command_and_is_named",
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
            "tests/runner/test_supervisor.py::test_streams_come_apart_and_merged_as_they_arrived",
            "tests/runner/test_output.py::test_text_cut_anywhere_comes_back_as_the_same_text",
            "tests/runner/test_spool.py::test_head_and_tail_of_a_lost_middle_are_kept",
            "tests/acceptance/test_terminals.py::test_output_far_over_the_ring_is_read_back_whole",
            "tests/acceptance/test_terminals.py::test_what_a_command_wrote_is_there_after_its_daemon_was_killed",
            "tests/gateway/test_elsewhere.py::test_any_daemon_lists_reads_and_ends_a_process_of_another",
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
            "tests/helper/test_monitor.py::test_a_killed_monitor_leaves_nothing_of",
            "tests/runner/test_terminal.py::test_nothing_of_a_terminal_outlives_its_end",
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
            "tests/gateway/test_occupancy.py::test_a_root_is_locked_against_other_daemons_while_it_is_occupied",
            "tests/gateway/test_occupancy.py::test_behind_a_patch_the_answer_names_the_patch",
            "tests/gateway/test_occupancy.py::test_a_daemon_of_an_enclosing_root_is_kept_out_and_keeps_out",
        ),
    ),
    Requirement(
        "X6",
        "An exec with a key is started at most once.",
        (
            RECOVERY + "test_a_command_with_a_key_is_started_at_most_once",
            "tests/gateway/test_execution.py::test_two_calls_with_one_key_at_the_same_time_start_one_process",
            "tests/gateway/test_execution.py::test_a_key_is_refused_for_a_command_that_differs_in_anything",
            "tests/statemachines/test_law.py::test_no_path_leads_back_to_spawning_so_a_command_starts_at_most_once",
        ),
    ),
    # Isolation
    Requirement(
        "I1",
        "With the Linux helper a command sees only its root (writable), system paths (read-only) and a private /tmp; "
        "no secrets, sockets, other processes or host knobs.",
        (
            BOX + "test_files.py::test_the_workspace_tmp_and_home_can_be_written_and_nothing_else",
            BOX + "test_files.py::test_secrets_of_the_home_do_not_exist_inside",
            BOX + "test_files.py::test_what_only_root_may_read_in_etc_is_masked_for_root_too",
            BOX + "test_files.py::test_what_the_kernel_tells_of_the_host_is_not_told_inside",
            BOX + "test_files.py::test_a_link_in_the_workspace_leads_to_nothing_outside",
            BOX + "test_files.py::test_a_socket_in_the_workspace_cannot_be_reached",
            BOX + "test_calls.py::test_no_process_of_the_host_can_be_seen_or_killed",
            BOX + "test_calls.py::test_calls_that_attacks_begin_with_are_denied",
            BOX + "test_endings.py::test_a_fork_bomb_is_stopped_at_its_limit_and_the_host_is_left_alone",
            BOX + "test_hard_links.py::test_a_command_writes_through_a_hard_link_and_the_link_was_counted_before",
            BOX + "test_hard_links.py::test_workspace_info_lists_it_as_a_limit_and_says_nothing_where_there_is_none",
            BOX + "test_supervised.py::test_a_spawn_that_is_cancelled_at_any_moment_leaves_no_process_and_no_command",
            BOX + "test_probe.py::test_a_program_that_only_says_that_it_isolates_is_found_out",
            "tests/gateway/test_held_commands.py::test_a_sandboxed_command_finds_neither_the_database_nor_the_console",
        ),
    ),
    Requirement(
        "I2",
        "`restricted` has no network at all when enforced; without a helper it is told as `none`, never implied.",
        (
            FILES + "test_workspace_info_states_what_is_in_force",
            BOX + "test_network.py::test_a_program_that_does_not_ask_the_proxy_has_no_way_at_all",
            BOX + "test_probe.py::test_a_real_bubblewrap_isolates_by_its_witnesses",
            BOX + "test_report.py::test_without_one_it_is_said_loudly",
            "tests/gateway/test_information.py::"
            "test_a_daemon_without_bubblewrap_says_of_each_layer_that_it_is_missing_and_what_to_correct",
            BOX + "test_degraded.py::test_what_gets_through_is_what_the_report_names",
            BOX + "test_degraded.py::test_no_tcp_connection_is_opened_nor_taken",
            BOX + "test_notes.py::test_a_command_that_wanted_the_network_is_told_that_there_is_none",
        ),
    ),
    Requirement(
        "I3",
        "`enabled` needs the helper, goes through the proxy only, reaches listed names only; private addresses and "
        "rebinding are refused.",
        (
            BOX + "test_open_network.py::test_a_listed_host_is_reached_and_another_is_refused_with_what_to_add",
            BOX + "test_open_network.py::test_programs_are_told_the_way_out_and_there_is_no_other",
            BOX + "test_open_network.py::test_a_proxy_that_dies_leaves_the_run_without_a_network_and_it_is_said",
            BOX + "test_open_network.py::test_without_the_sandbox_a_networked_command_is_refused_before_it_starts",
            BOX + "test_open_network.py::test_decisions_stand_in_the_audit_chain",
            BOX
            + "test_trail.py::"
            + "test_a_daemon_that_is_killed_in_the_middle_of_a_run_leaves_what_was_decided_in_the_audit",
            BOX + "test_network.py::test_addresses_and_names_that_lead_inside_are_refused_and_nothing_is_dialled",
            BOX + "test_network.py::test_a_resolver_that_changes_its_mind_is_asked_once",
            BOX + "test_network.py::test_a_tunnel_for_a_listed_name_carries_no_other_server_name",
            "tests/helper/test_proxy_names.py::test_a_rule_admits_what_it_says_and_nothing_else",
            "tests/helper/test_proxy_names.py::test_an_address_that_is_not_out_on_the_internet_is_named",
            "tests/helper/test_proxy_tunnel.py::test_what_cannot_be_judged_does_not_go_through",
            "tests/gateway/test_decisions.py::test_a_command_needs_the_isolation_that_its_workspace_demands",
        ),
    ),
    Requirement(
        "I4",
        "No patch, undo or command changes what git, editors or agents run by themselves on the host; repositories and "
        "protected files made anew are reported.",
        (
            FILES + "test_no_path_leads_out_and_no_link_or_device_is_opened",
            HOSTILE + "test_no_spelling_of_a_protected_path_is_patched",
            "tests/runner/test_patcher.py::test_a_git_directory_cannot_be_made_from_parts",
            "tests/runner/test_patch_git.py::test_what_the_configuration_names_through_links_is_not_a_patchs_to_write",
            "tests/gateway/test_undo.py::test_an_undo_changes_no_protected_path_though_the_patch_was_allowed_to",
            BOX + "test_git.py::test_git_reads_and_nothing_of_its_directory_can_be_changed",
            BOX + "test_git.py::test_nested_repositories_and_gitfiles_are_protected_and_cannot_be_moved_away",
            BOX + "test_git.py::test_protected_files_cannot_be_changed_or_replaced_by_a_command",
            BOX + "test_git.py::test_no_repository_can_be_put_where_git_expects_a_submodule",
            BOX + "test_files.py::test_a_link_where_git_looks_fails_closed_and_exposes_nothing",
            BOX + "test_notes.py::test_what_a_run_planted_is_named_and_stands_in_the_audit",
            BOX
            + "test_planted.py::"
            + "test_a_repository_of_an_earlier_run_that_the_index_has_git_enter_is_told_as_loud",
            BOX
            + "test_planted.py::"
            + "test_a_link_on_the_way_to_what_is_protected_is_told_and_what_it_leads_to_is_protected",
            BOX + "test_planted.py::test_a_directory_that_a_run_closed_is_told_as_it_may_hold_what_an_editor_runs",
            BOX + "test_planted.py::test_what_was_hidden_before_a_run_is_not_told_after_it",
        ),
    ),
    Requirement(
        "I5",
        "The patch helper, the search and the worker are confined or separated as workspace_info says.",
        (
            "tests/runner/test_search.py::test_the_confinement_in_force_is_what_was_asked_for",
            "tests/runner/test_confinement.py::test_the_sandbox_holds_the_root_and_ripgrep_and_nothing_else",
            "tests/gateway/test_information.py::test_each_layer_is_told_as_it_was_found",
            "tests/gateway/test_information.py::"
            "test_a_daemon_without_bubblewrap_says_of_each_layer_that_it_is_missing_and_what_to_correct",
            "tests/helper/test_confine.py::test_only_the_root_and_the_journals_can_be_read_and_written",
            "tests/helper/test_confine.py::test_no_socket_can_be_made_and_no_program_started",
            WORKER + "test_program.py::test_it_is_hardened_before_it_has_listened",
            WORKER + "test_program.py::test_another_process_is_turned_away_and_the_gateway_still_served",
            WORKER + "test_program.py::test_it_dies_with_its_parent_and_takes_its_processes_along",
            WORKER + "test_lost.py::test_nothing_of_the_gateways_secrets_is_in_the_worker",
            WORKER + "test_lost.py::test_workspace_info_names_the_runner",
            WORKER + "test_lost.py::test_a_killed_worker_takes_its_processes_along_and_they_are_lost",
            WORKER + "test_lost.py::test_a_patch_whose_worker_is_killed_ends_as_the_disk_says",
            WORKER
            + "test_lost.py::test_a_start_that_was_lost_with_its_worker_is_unknown_to_the_caller_and_never_repeated",
        ),
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
            "tests/gateway/test_holds.py::test_two_resumes_at_once_run_it_once_and_get_the_same_result",
            "tests/gateway/test_holds.py::test_what_was_shown_binds_and_a_conflict_does_nothing",
            "tests/gateway/test_holds.py::test_a_hold_that_was_not_granted_in_time_expires_and_a_new_one_may_be_had",
            "tests/gateway/test_holds_machine.py::"
            "test_holds_are_what_a_plain_model_says_whatever_is_done_in_whatever_order",
            OPERATED + "test_an_undo_is_held_too_and_undoes_once_it_is_granted",
            OPERATED + "test_a_grant_for_something_else_than_what_was_shown_is_refused",
            OPERATED + "test_a_grant_can_be_taken_back_until_it_is_used",
            COMMANDS_HELD + "test_a_command_is_held_with_all_that_it_is_and_runs_once_in_the_sandbox",
            COMMANDS_HELD + "test_what_a_granted_command_reads_later_was_granted_with_it_or_is_held",
            BROWSER + "test_holds.py::test_a_held_patch_arrives_live_is_read_granted_and_applied",
            BROWSER + "test_holds.py::test_a_denied_patch_is_told_to_the_agent_and_never_runs",
            BROWSER + "test_holds.py::test_a_new_hold_moves_no_button",
            "tests/cli/test_approvals.py::test_a_hold_is_listed_shown_granted_and_runs_when_the_agent_resumes",
            "tests/cli/test_approvals.py::test_decisions_without_a_daemon_are_there_when_it_comes_back",
            "tests/protocol/test_asking.py::test_a_grant_runs_what_was_shown_and_the_call_answers_with_its_result",
        ),
    ),
    Requirement(
        "H2",
        "A hold never widens a profile; policy is checked again at resume.",
        (
            "tests/testing/test_bench.py::test_a_grant_does_not_outlive_the_profile_it_was_given_under",
            "tests/gateway/test_holds.py::test_a_profile_that_became_read_only_refuses_the_resume",
            OPERATED + "test_a_grant_for_a_time_outlives_the_daemon_but_not_the_profile",
            OPERATED + "test_a_grant_of_patches_never_opens_a_protected_path",
            "tests/gateway/test_scopes.py::test_a_program_grant_covers_any_arguments_and_pins_everything_else",
            "tests/gateway/test_scopes.py::test_any_arguments_are_refused_for_what_could_do_anything",
        ),
    ),
    Requirement(
        "H3",
        "In `operator` mode no path open to the MCP caller through CodeSpace, a command that it runs, or a web page "
        "can grant (limit: a client with its own shell under the same account).",
        (
            OPERATED + "test_a_caller_can_grant_neither_by_a_tool_nor_by_claims_nor_by_asking_again",
            OPERATED + "test_what_was_held_for_the_operator_is_not_the_callers_under_another_configuration",
            OPERATED + "test_a_grant_that_a_caller_gave_itself_is_void_once_the_operator_decides",
            COMMANDS_HELD + "test_what_a_granted_command_reads_later_was_granted_with_it_or_is_held",
            COMMANDS_HELD + "test_a_sandboxed_command_finds_neither_the_database_nor_the_console",
            "tests/settings/test_load.py::"
            "test_one_workspace_that_the_operator_decides_for_demands_a_sandbox_everywhere",
            "tests/settings/test_load.py::test_a_database_in_memory_is_refused_where_the_operator_decides",
            "tests/http/test_approvals.py::test_nobody_else_lists_or_grants",
            "tests/protocol/test_asking.py::"
            "test_where_the_operator_decides_a_client_is_not_asked_and_its_answer_would_count_for_nothing",
            BROWSER + "test_attacks.py::test_a_page_of_another_origin_can_neither_grant_nor_read_nor_frame",
            BROWSER + "test_attacks.py::test_a_name_that_was_rebound_to_this_machine_gets_no_page",
            BROWSER + "test_attacks.py::test_a_link_is_good_once_and_looking_at_it_takes_nothing",
            BROWSER + "test_attacks.py::test_no_program_without_a_session_or_a_forms_token_gets_anything",
        ),
    ),
    Requirement(
        "H4",
        "The body exists only while pending, granted or resuming; then digest metadata, and the bytes are gone from "
        "the file.",
        (
            SECRETS + "test_a_held_body_is_gone_from_the_database_once_it_was_used",
            "tests/gateway/test_holds.py::test_the_body_is_gone_once_the_hold_is_denied_or_consumed",
            "tests/gateway/test_store.py::test_scrubbed_bytes_are_gone_from_every_file",
            OPERATED + "test_a_hold_that_nobody_asks_for_is_swept_and_its_body_is_gone_from_every_file",
            OPERATED + "test_a_body_leaves_every_file_though_somebody_reads_the_database",
            OPERATED + "test_the_command_line_scrubs_what_it_denies_without_a_daemon",
        ),
    ),
    Requirement(
        "H5",
        "A crash while resuming never runs an exec twice and settles a patch from the journal.",
        (
            "tests/gateway/test_recovery.py::test_a_granted_command_that_was_being_started_is_ambiguous_and_its_body_is_gone",
            "tests/gateway/test_recovery.py::test_a_granted_patch_that_was_being_applied_gets_the_end_of_its_operation",
            "tests/gateway/test_holds_machine.py::"
            "test_holds_are_what_a_plain_model_says_whatever_is_done_in_whatever_order",
        ),
    ),
    # Work
    Requirement(
        "W1",
        "Drafts are invisible to the agent; a claim is atomic and frozen; work_finish refuses while input waits; stop "
        "stops.",
        (
            WORKS + "test_a_draft_is_invisible_until_it_is_queued_and_its_text_until_it_is_claimed",
            WORKS + "test_of_two_claims_at_the_same_moment_one_wins_and_the_other_is_told",
            WORKS + "test_two_daemons_on_one_database_never_claim_the_same_intent",
            WORKS + "test_a_claimed_intent_is_frozen_for_every_verb_of_the_operator",
            WORKS + "test_a_work_is_not_finished_while_input_is_queued_or_claimed_and_undone",
            WORKS + "test_a_stop_ends_commands_and_leaves_a_notice_that_is_claimed_first",
            "tests/gateway/test_works_machine.py::"
            "test_works_and_intents_are_what_a_plain_model_says_whatever_is_done_in_whatever_order",
            STEERING + "test_input_reaches_the_agent_with_its_next_result_and_keeps_the_work_open_until_it_is_done",
            STEERING + "test_a_stop_ends_the_command_that_an_agent_waits_for",
            INBOX + "test_a_stop_ends_what_runs_in_the_workspace_and_nothing_new_starts_in_the_work",
        ),
    ),
    # Record
    Requirement(
        "A1",
        "Every decision and change is in the audit chain; edits, gaps and reorderings are found by `audit verify`, a "
        "cut tail by an exported head.",
        (
            "tests/gateway/test_audit.py::test_any_tampering_with_stored_rows_is_found",
            "tests/gateway/test_audit.py::test_a_cut_tail_is_sound_by_itself_and_found_against_an_exported_head",
            "tests/gateway/test_ledger.py::test_a_step_moves_row_and_chain_together_and_a_final_state_says_when",
            "tests/gateway/test_holds.py::test_each_decision_on_a_hold_is_in_the_chain_with_who_made_it",
            OPERATED + "test_each_use_of_a_grant_is_in_the_chain_with_the_hold_it_granted",
            WORKS + "test_everything_is_in_the_chain_and_no_text_is",
            "tests/cli/test_operations.py::test_what_was_forgotten_is_gone_and_recorded_so_and_cannot_be_undone",
            "tests/cli/test_operator.py::test_a_chain_that_somebody_touched_is_found",
        ),
    ),
    Requirement(
        "A1a",
        "Hostile text (names, patches, output, argv) never acts on a terminal, page or log: one escaping function for "
        "all.",
        (
            HOSTILE + "test_hostile_text_comes_back_escaped_in_errors",
            "tests/test_display.py::test_no_text_whatsoever_shows_a_character_that_acts",
            "tests/test_display.py::test_what_acts_or_hides_is_written_as_an_escape",
            BROWSER + "test_holds.py::test_hostile_text_is_shown_and_acts_on_no_page",
            "tests/cli/test_approvals.py::test_hostile_names_and_contents_act_on_no_terminal",
            "tests/test_log.py::test_hostile_text_stays_on_its_line_and_never_acts",
        ),
    ),
    Requirement(
        "A2",
        "Logs are structured, on stderr, redacted; canary secrets never show up in logs, ledger, errors or pages.",
        (
            SECRETS + "test_no_secret_is_in_the_log_the_database_or_an_error",
            SECRETS + "test_the_token_is_in_no_log_no_answer_and_no_database",
            "tests/test_log.py::test_a_secret_never_shows_wherever_it_stands",
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
            "tests/acceptance/test_both_doors.py::test_a_command_started_over_stdio_is_read_and_ended_over_http",
            "tests/http/test_http.py::test_the_official_client_works_in_every_era_and_hears_progress",
            "tests/stdio/test_stdio.py::test_the_official_client_works_in_every_era_and_hears_progress",
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
            "tests/stdio/test_stdio.py::test_no_stray_byte_reaches_the_wire",
            "tests/stdio/test_stdio.py::test_end_of_input_ends_the_program_within_a_second_with_a_call_under_way",
        ),
    ),
    Requirement(
        "M3",
        "Every error has code, message, next step; no traceback, no hang.",
        (
            HOSTILE + "test_any_json_value_as_an_argument_is_answered_in_the_contracts_words",
            ENDINGS + "test_garbage_on_the_wire_is_answered_or_ignored_and_the_daemon_goes_on",
            "tests/protocol/test_server.py::test_a_fault_is_internal_without_its_text_and_the_log_knows_its_reference",
            "tests/test_errors.py::test_the_codes_are_exactly_those_of_the_contract",
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
