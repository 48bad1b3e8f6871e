"""What a scoped grant covers, asked without a daemon: pinned to what was seen, and never a launcher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.errors import Refusal
from codespace.gateway import scopes
from codespace.gateway.hold import Hold
from codespace.gateway.launchers import NAMES, is_launcher

ROOT = "/home/me/project"
BOUND = {
    "program": "/usr/bin/wc",
    "program_file": "/usr/bin/wc",
    "program_version": "sha256:" + "1" * 64,
    "file:a.txt": "sha256:" + "2" * 64,
}
SHOWN = {
    "command": ["wc", "-l", "a.txt"],
    "cwd": ".",
    "env": {"LANG": "C"},
    "stdin": None,
    "open_stdin": False,
    "tty": False,
    "rows": 24,
    "cols": 80,
    "timeout_seconds": 60.0,
    "network": {"policy": "restricted", "allowed_domains": []},
    "bound": BOUND,
}
OPENED = {"policy": "enabled", "allowed_domains": ["example.com"]}


def hold(tool: str = "exec_command", shown: dict[str, Any] | None = None, **more: Any) -> Hold:
    return Hold(
        id="appr-1",
        tool=tool,
        workspace_id="w",
        operation_key=None,
        fingerprint="f",
        state="pending",
        body={},
        shown={**(SHOWN if shown is None else shown), **more},
        reason=None,
        expires_at=1.0,
        created_at=0.0,
        result=None,
        approvals="operator",
        instance_id="inst-1",
        caller="stdio",
    )


def bound(**changes: Any) -> dict[str, Any]:
    return {**BOUND, **changes}


def test_an_exact_grant_covers_the_same_command_and_nothing_else() -> None:
    terms = scopes.terms_of(hold(), "exact", root=ROOT)
    assert scopes.covers("exact", terms, hold(), ROOT)
    different: list[dict[str, Any]] = [
        {"command": ["wc", "-l", "b.txt"]},
        {"cwd": "sub"},
        {"env": {}},
        {"stdin": ""},
        {"tty": True},
        {"timeout_seconds": 61.0},
        {"network": OPENED},
        {"network": OPENED | {"allowed_domains": ["example.com", "more.example"]}},
        {"bound": bound(program_version="sha256:" + "3" * 64)},
        {"bound": bound(**{"file:a.txt": "sha256:" + "4" * 64})},
    ]
    assert not any(scopes.covers("exact", terms, hold(**each), ROOT) for each in different)
    assert not scopes.covers("exact", terms, hold(), "/home/me/other")


def test_a_program_grant_covers_any_arguments_and_pins_everything_else() -> None:
    terms = scopes.terms_of(hold(), "program", root=ROOT)
    for covered in ({"command": ["wc", "x"], "bound": {**BOUND, "file:x": "sha256:5"}}, {"timeout_seconds": 5.0}):
        assert scopes.covers("program", terms, hold(**covered), ROOT)
    different: list[dict[str, Any]] = [
        {"command": ["/usr/bin/wc", "x"]},
        {"cwd": "sub"},
        {"env": {"LANG": "C", "MORE": "x"}},
        {"stdin": "words"},
        {"open_stdin": True},
        {"tty": True},
        {"timeout_seconds": 61.0},
        {"network": OPENED},
        {"network": OPENED | {"allowed_domains": ["example.com", "more.example"]}},
        {"bound": bound(program="/usr/local/bin/wc")},
        {"bound": bound(program_file="/usr/bin/dash")},
        {"bound": bound(program_version="sha256:" + "3" * 64)},
    ]
    assert not any(scopes.covers("program", terms, hold(**each), ROOT) for each in different)
    assert not scopes.covers("program", terms, hold("apply_patch", {"files": [], "changes": []}), ROOT)


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ["python3.11", "-V"], "bound": bound(program="/usr/bin/python3.11")},
        {"bound": bound(program_file="/usr/bin/busybox")},
        {"bound": bound(program="/opt/tool", program_file="/bin/dash")},
        {"bound": bound(program_version="unreadable")},
        {"bound": bound(program=f"{ROOT}/bin/tool", program_file=f"{ROOT}/bin/tool")},
        {"command": ["./tool"], "bound": bound(program="./tool")},
        {"bound": bound(program_file=f"{ROOT}/bin/wc")},
        {"stdin": "rm -r ."},
        {"open_stdin": True},
        {"tty": True},
    ],
)
def test_any_arguments_are_refused_for_what_could_do_anything(changes: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        scopes.terms_of(hold(**changes), "program", root=ROOT)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert scopes.terms_of(hold(**changes), "exact", root=ROOT)


COMMON = (
    "sh",
    "bash",
    "python",
    "env",
    "git",
    "npm",
    "make",
    "node",
    "sudo",
    "xargs",
    "find",
    "ssh",
    "docker",
    "cargo",
)


@pytest.mark.parametrize("name", COMMON)
def test_shells_interpreters_and_launchers_are_known_whatever_their_version_and_place(name: str) -> None:
    assert is_launcher([name])
    assert is_launcher([f"/usr/local/bin/{name}"])
    assert is_launcher([f"/opt/x/{name}3.12"])
    assert is_launcher([f"C/{name.upper()}.EXE"])


CLOTHES = (
    "npm-cli.js python3.13t ld-linux-x86-64.so.2 gcc-13 git-2.45 bash5 perl5.36-x86_64-linux-gnu vim.basic vim.tiny "
    "x86_64-linux-gnu-gcc-12 x86_64-pc-linux-gnu-g++ arm-none-eabi-gdb aarch64-linux-gnu-python3.11 nc.openbsd pdb3.11 "
    "c89-gcc x86_64-linux-gnu-cpp-12 qemu-aarch64-static busybox-static x86_64-w64-mingw32-gcc editor prove jrunscript"
)


@pytest.mark.parametrize("name", CLOTHES.split())
def test_a_launcher_in_other_clothes_is_known_too(name: str) -> None:
    assert is_launcher([f"/usr/lib/{name}"])


@pytest.mark.parametrize(
    "command",
    [
        ["split", "--filter=./evil", "a.txt"],
        ["install", "-s", "--strip-program=./evil", "a.txt", "b"],
        ["sort", "--compress-program=./evil", "a.txt"],
        ["rg", "--pre", "./evil", "x"],
        ["eslint", "--config", "evil.js"],
    ],
)
def test_a_tool_that_runs_what_an_option_names_is_granted_with_no_other_arguments(command: list[str]) -> None:
    program = f"/usr/bin/{command[0]}"
    bound = {"program": program, "program_file": program, "program_version": "sha256:" + "1" * 64}
    with pytest.raises(Refusal, match="runs what its arguments say"):
        scopes.terms_of(hold(shown=SHOWN | {"command": [command[0], "a.txt"], "bound": bound}), "program", root=ROOT)


@pytest.mark.parametrize(
    "name",
    ["wc", "ls", "cat", "ruff", "md5sum", "sha256sum", "clang-format", "x86_64-linux-gnu-objdump", "clang-format-14"],
)
def test_a_tool_that_does_one_thing_is_no_launcher(name: str) -> None:
    assert not is_launcher([name])


def test_the_names_are_all_spelt_as_they_are_looked_up() -> None:
    assert [name for name in sorted(NAMES) if not is_launcher([name])] == []


def test_an_empty_path_is_not_the_whole_workspace() -> None:
    shown = {"files": ["a"], "changes": [{"path": "a", "kind": "update"}]}
    with pytest.raises(Refusal, match="needs the path"):
        scopes.terms_of(hold("apply_patch", shown), "patches", root=ROOT, path="")


PATHS = st.lists(st.sampled_from(["src", "srcs", "a", ".."]), min_size=1, max_size=3).map("/".join)


@given(PATHS, st.lists(PATHS, min_size=1, max_size=3))
def test_patches_are_covered_only_where_every_file_is_under_the_path(path: str, files: list[str]) -> None:
    shown = {"files": files, "changes": [{"path": each, "kind": "update"} for each in files]}
    patch = hold("apply_patch", shown)
    terms = {"root": ROOT, "path": path}
    inside = all([*each.split("/")][: len(path.split("/"))] == path.split("/") for each in files)
    assert scopes.covers("patches", terms, patch, ROOT) == inside


def test_a_move_counts_where_it_comes_from_too() -> None:
    shown = {"files": ["src/b"], "changes": [{"path": "src/b", "from_path": "b", "kind": "move"}]}
    with pytest.raises(Refusal):
        scopes.terms_of(hold("apply_patch", shown), "patches", root=ROOT, path="src")


def test_an_undo_is_covered_by_no_grant_of_patches() -> None:
    shown = {"files": ["src/b"], "changes": [{"path": "src/b", "kind": "update"}]}
    terms = scopes.terms_of(hold("apply_patch", shown), "patches", root=ROOT, path="src")
    assert not scopes.covers("patches", terms, replace(hold("apply_patch", shown), tool="operation_undo"), ROOT)
