"""Hostile names, patches, argv and values through the front door: a real client, a whole daemon."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codespace.display import display
from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.site import put_files, tree

OUTSIDE_SPELLINGS = (
    "..",
    "../secret.txt",
    "../../etc/passwd",
    "sub/../../secret.txt",
    "./../secret.txt",
    "sub/./../../secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "sub//../..//secret.txt",
    "..//secret.txt",
)
# These leave the root. What only looks as if it did is a name like any other:
ODD_NAMES = (
    "..secret",
    "...",
    "~",
    "$HOME",
    "%2e%2e",
    "..\\secret.txt",
    "C:\\secret.txt",
    "file:secret",
    "-rf",
    " ",
    "*?[",
)
PROTECTED_SPELLINGS = (
    ".git/config",
    ".GIT/hooks/pre-commit",
    ".Git/x",
    "sub/.git/config",
    "sub/./.git/config",
    "sub/../.git/hooks/x",
    ".git",
    ".mcp.json",
    ".cursor/mcp.json",
    ".claude/settings.json",
    ".codex/config.toml",
    ".vscode/tasks.json",
    ".envrc",
    # What another filesystem takes for the same: dots, spaces and short names of FAT and NTFS, what HFS+ passes over.
    ".git./config",
    ".git /config",
    ".git. ./hooks/x",
    "sub/GIT~1/config",
    ".g\u200cit/config",
    ".MCP.json",
    ".Cursor/mcp.json",
)
HOSTILE_TEXT = "\x1b[2J\x1b]0;owned\x07\r\u202egnp.exe\u200b\x00".replace("\x00", "")


async def refusal(bench: Bench, tool: str, /, **arguments: Any) -> Refusal:
    """Call a tool that must be refused."""
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value


def add(path: str, line: str = "written") -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+{line}\n*** End Patch\n"


async def test_no_spelling_of_a_path_reaches_the_outside() -> None:
    async with open_bench(files={"sub/file.txt": "inside\n"}) as bench:
        secret = bench.root.parent / "secret.txt"
        secret.write_text("do not show\n")
        for path in OUTSIDE_SPELLINGS:
            codes = {
                (await refusal(bench, "read", path=path)).code,
                (await refusal(bench, "apply_patch", patch=add(path))).code,
                (await refusal(bench, "exec_command", command=["/bin/true"], cwd=path)).code,
            }
            assert codes == {"PATH_ESCAPE"}, path
            wanted = {"patch": add("fine.txt"), "expected_versions": {path: "absent"}}
            assert (await refusal(bench, "apply_patch", **wanted)).code == "PATH_ESCAPE", path
        assert tree(bench.root) == {"sub/file.txt": b"inside\n"}
        assert secret.read_text() == "do not show\n"


@pytest.mark.parametrize("point", [*range(1, 0x20), 0x7F])
def test_every_control_character_is_refused_in_a_path_by_the_pure_rule(point: int) -> None:
    from codespace import beneath

    with pytest.raises(Refusal) as caught:
        beneath.clean(f"a{chr(point)}b")
    assert caught.value.code == "INVALID_ARGUMENT"
    assert chr(point) not in display(caught.value.message)


async def test_control_characters_in_names_are_refused_by_every_tool() -> None:
    async with open_bench() as bench:
        for character in ("\x00", "\x01", "\x1b", "\x7f", "\n"):
            path = f"a{character}b"
            assert (await refusal(bench, "read", path=path)).code == "INVALID_ARGUMENT"
            assert (await refusal(bench, "exec_command", command=["/bin/true"], cwd=path)).code == "INVALID_ARGUMENT"
            if character != "\n":
                assert (await refusal(bench, "apply_patch", patch=add(path))).code == "INVALID_PATCH"
        assert tree(bench.root) == {}


async def test_names_that_only_look_dangerous_are_names() -> None:
    async with open_bench() as bench:
        for name in ODD_NAMES:
            if name.strip():
                assert (await bench.call("apply_patch", patch=add(name)))["status"] == "applied", name
                assert (await bench.call("read", path=name))["content"] == "written\n"
        assert set(tree(bench.root)) == {name for name in ODD_NAMES if name.strip()}
        found = await bench.call("find")
        assert set(found["paths"]) == {name for name in ODD_NAMES if name.strip()}


async def test_links_devices_and_sockets_are_refused_by_every_tool() -> None:
    async with open_bench(files={"file.txt": "inside\n"}) as bench:
        outside = bench.site.folder / "outside"
        put_files(outside, {"secret.txt": "do not show\n"})
        (bench.root / "link").symlink_to(outside / "secret.txt")
        (bench.root / "inner").symlink_to("file.txt")
        (bench.root / "dangling").symlink_to("nowhere")
        (bench.root / "folder").symlink_to(outside)
        (bench.root / "loop").symlink_to("loop")
        os.mkfifo(bench.root / "fifo")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(bench.root / "socket"))
        listener.close()

        links, specials = ("link", "inner", "dangling", "folder/secret.txt", "loop", "folder/new"), ("fifo", "socket")
        for path, code in {
            **dict.fromkeys(links, "SYMLINK_REJECTED"),
            **dict.fromkeys(specials, "SPECIAL_FILE_REJECTED"),
        }.items():
            update = f"*** Begin Patch\n*** Update File: {path}\n@@\n-x\n+y\n*** End Patch\n"
            delete = f"*** Begin Patch\n*** Delete File: {path}\n*** End Patch\n"
            move = (
                f"*** Begin Patch\n*** Update File: file.txt\n*** Move to: {path}\n@@\n-inside\n+moved\n*** End Patch\n"
            )
            with trio.fail_after(60):
                assert (await refusal(bench, "read", path=path)).code == code, path
                for patch in (update, delete):
                    assert (await refusal(bench, "apply_patch", patch=patch)).code == code, patch
                for patch in (add(path), move):
                    taken = {code, "ADD_FILE_EXISTS", "MOVE_DESTINATION_EXISTS"}
                    assert (await refusal(bench, "apply_patch", patch=patch)).code in taken, patch
        assert (await bench.call("search", pattern="do not show"))["matches"] == []
        assert "do not show" not in json.dumps(await bench.call("read_many", paths=[*links, *specials]))
        assert tree(outside) == {"secret.txt": b"do not show\n"}
        assert (bench.root / "file.txt").read_text() == "inside\n"


async def test_no_spelling_of_a_protected_path_is_patched() -> None:
    async with open_bench(files={"file.txt": "x\n", ".git/HEAD": "ref: refs/heads/main\n"}) as bench:
        before = tree(bench.root)
        for path in PROTECTED_SPELLINGS:
            assert (await refusal(bench, "apply_patch", patch=add(path))).code == "PROTECTED_PATH", path
            move = f"*** Begin Patch\n*** Update File: file.txt\n*** Move to: {path}\n@@\n-x\n+y\n*** End Patch\n"
            assert (await refusal(bench, "apply_patch", patch=move)).code == "PROTECTED_PATH", path
        delete = "*** Begin Patch\n*** Delete File: .git/HEAD\n*** End Patch\n"
        assert (await refusal(bench, "apply_patch", patch=delete)).code == "PROTECTED_PATH"
        both = add("innocent.txt").replace("*** End Patch\n", "") + add(".git/hooks/x").replace("*** Begin Patch\n", "")
        assert (await refusal(bench, "apply_patch", patch=both)).code == "PROTECTED_PATH"
        assert tree(bench.root) == before


async def test_hidden_paths_exist_for_no_tool_and_no_error() -> None:
    files = {".env": "TOKEN=do not show\n", "keys/a.pem": "do not show\n", "open.txt": "seen\n"}
    async with open_bench(files=files, workspace={"hidden_paths": [".env", "keys/**"]}) as bench:
        missing = await refusal(bench, "read", path="no-such-file")
        for path in (".env", "keys/a.pem"):
            hidden = await refusal(bench, "read", path=path)
            assert hidden.code == missing.code == "FILE_NOT_FOUND"
            assert hidden.message.replace(path, "no-such-file") == missing.message
            update = f"*** Begin Patch\n*** Update File: {path}\n@@\n-guess\n+y\n*** End Patch\n"
            refused = await refusal(bench, "apply_patch", patch=update)
            assert "do not show" not in json.dumps(refused.body())
        assert (await bench.call("find"))["paths"] == ["open.txt"]
        assert (await bench.call("search", pattern="do not show"))["matches"] == []
        assert tree(bench.root) == {path: text.encode() for path, text in files.items()}


async def test_what_is_hidden_later_is_told_by_no_record_either_and_the_operator_still_sees_it() -> None:
    patch = (
        "*** Begin Patch\n*** Update File: secret/s.txt\n@@\n-1\n+2\n*** Update File: open.txt\n@@\n-1\n+2\n"
        "*** Update File: a.txt\n*** Move to: secret/a.txt\n@@\n-1\n+2\n*** End Patch\n"
    )
    missed = "*** Begin Patch\n*** Update File: secret/none.txt\n@@\n-1\n+2\n*** End Patch\n"
    waiting = "*** Begin Patch\n*** Update File: secret/s.txt\n@@\n-2\n+3\n*** End Patch\n"
    two_places = "*** Begin Patch\n*** Update File: secret/two.txt\n@@\n-1\n+2\n*** End Patch\n"
    files = {"secret/s.txt": "1\n", "secret/two.txt": "1\n1\n", "open.txt": "1\n", "a.txt": "1\n"}
    async with open_bench(files=files) as bench:
        applied = await bench.call("apply_patch", patch=patch, operation_key="done")
        await bench.daemon.operator._ledger.note_rescued(applied["operation_id"], ["secret/s.txt"])
        rejected = await refusal(bench, "apply_patch", patch=missed, operation_key="missed")
        bench.site.add_workspace("main", approvals="confirm")
        await bench.restart()
        pending = (await refusal(bench, "apply_patch", patch=waiting)).approval_id
        twice = (await refusal(bench, "apply_patch", patch=two_places)).approval_id
        (bench.root / "link").symlink_to("secret/s.txt")
        bound = (await refusal(bench, "exec_command", command=["cat", "link"])).approval_id
        undo = (await refusal(bench, "operation_undo", operation_id=applied["operation_id"])).approval_id
        await bench.call("approval_resolve", approval_id=undo, decision="grant")
        bench.site.add_workspace("main", approvals="confirm", hidden_paths=["/secret"])
        await bench.restart()

        told: list[dict[str, Any]] = [
            await bench.call("operation_status", operation_id=applied["operation_id"]),
            await bench.call("apply_patch", patch=patch, operation_key="done"),
        ]
        for each in told:
            assert sorted(each["files"]) == ["a.txt", "open.txt"]
            assert ([change["path"] for change in each["changes"]], each["files_left_out"]) == (["open.txt"], 2)
            assert "still_current" not in each
        told.append(await bench.call("operation_status", operation_id=rejected.operation_id))
        told.append((await refusal(bench, "apply_patch", patch=missed, operation_key="missed")).body())
        told.append((await refusal(bench, "apply_patch", patch=waiting)).body())
        told += [
            await bench.call("approval_status", approval_id=each, wait_seconds=0) for each in (pending, twice, bound)
        ]
        told.append((await refusal(bench, "operation_resume", approval_id=undo)).body())
        told.append(await bench.call("approval_status", approval_id=undo, wait_seconds=0))
        bench.site.add_workspace("main", hidden_paths=["/secret"])
        await bench.restart()
        unknown = await refusal(bench, "operation_undo", operation_id=applied["operation_id"])
        assert unknown.code == "FILE_NOT_FOUND"
        for each in (*told, unknown.body()):
            assert "secret" not in json.dumps(each)
        assert (bench.root / "secret/s.txt").read_text() == "2\n"
        seen = await bench.daemon.operator.operation(applied["operation_id"])
        assert "secret/s.txt" in seen["files"]


async def test_a_patch_that_fails_at_its_last_operation_writes_nothing() -> None:
    async with open_bench(files={"a.txt": "a\n", "b.txt": "b\n"}) as bench:
        before = tree(bench.root)
        good = (
            "*** Begin Patch\n*** Update File: a.txt\n@@\n-a\n+A\n*** Add File: new/c.txt\n+c\n*** Delete File: b.txt\n"
        )
        for bad, code in {
            "*** Update File: missing.txt\n@@\n-x\n+y\n": "FILE_NOT_FOUND",
            "*** Update File: a.txt\n@@\n-not there\n+y\n": "INVALID_PATCH",
            "*** Add File: a.txt\n+taken\n": "ADD_FILE_EXISTS",
            "*** Add File: ../out.txt\n+x\n": "PATH_ESCAPE",
            "*** Add File: .git/x\n+x\n": "PROTECTED_PATH",
            "*** Add File: new/c.txt/below\n+x\n": None,
            "nonsense\n": "INVALID_PATCH",
        }.items():
            refused = await refusal(bench, "apply_patch", patch=good + bad + "*** End Patch\n")
            assert code is None or refused.code == code, (bad, refused)
            assert tree(bench.root) == before
            assert not (bench.root / "new").exists()


async def test_add_and_move_never_overwrite_and_modes_survive() -> None:
    async with open_bench(files={"run.sh": "echo one\n", "other.txt": "other\n"}) as bench:
        (bench.root / "run.sh").chmod(0o751)
        assert (await refusal(bench, "apply_patch", patch=add("other.txt"))).code == "ADD_FILE_EXISTS"
        change = "@@\n-echo one\n+echo two\n*** End Patch\n"
        move = "*** Begin Patch\n*** Update File: run.sh\n*** Move to: {}\n" + change
        assert (await refusal(bench, "apply_patch", patch=move.format("other.txt"))).code == "MOVE_DESTINATION_EXISTS"
        assert (await refusal(bench, "apply_patch", patch=move.format("run.sh"))).code == "MOVE_DESTINATION_EXISTS"
        assert tree(bench.root) == {"run.sh": b"echo one\n", "other.txt": b"other\n"}

        moved = await bench.call("apply_patch", patch=move.format("bin/run.sh"))
        (change_made,) = moved["changes"]
        assert (change_made["kind"], change_made["from_path"], change_made["path"]) == ("move", "run.sh", "bin/run.sh")
        assert stat.S_IMODE((bench.root / "bin/run.sh").stat().st_mode) == 0o751
        assert tree(bench.root) == {"bin/run.sh": b"echo two\n", "other.txt": b"other\n"}


async def test_a_hard_link_is_replaced_and_never_written_through() -> None:
    async with open_bench(files={"file.txt": "old\n"}) as bench:
        outside = bench.site.folder / "outside.txt"
        os.link(bench.root / "file.txt", outside)
        patch = "*** Begin Patch\n*** Update File: file.txt\n@@\n-old\n+new\n*** End Patch\n"
        await bench.call("apply_patch", patch=patch)
        assert (bench.root / "file.txt").read_text() == "new\n"
        assert outside.read_text() == "old\n"


async def test_huge_and_deep_patches_are_answered_within_their_time() -> None:
    lines = "".join(f"line {number}\n" for number in range(20_000))
    async with open_bench(files={"big.txt": lines}, workspace={"limits": {"patch_bytes": 1_000_000}}) as bench:
        before = tree(bench.root)
        scattered = "".join(f"@@\n-line {number}\n+changed {number}\n" for number in range(19_999, 0, -7))
        hostile = {
            "too large": add("x", "y" * 1_100_000),
            "chunks in the wrong order": "*** Begin Patch\n*** Update File: big.txt\n" + scattered + "*** End Patch\n",
            "a path of ten thousand parts": add("a/" * 10_000 + "b"),
            "a name that is too long": add("n" * 5000),
            "empty": "",
            "only newlines": "\n" * 100_000,
        }
        for what, patch in hostile.items():
            with trio.fail_after(60):
                refused = await refusal(bench, "apply_patch", patch=patch)
            assert refused.code in ("LIMIT_REACHED", "INVALID_PATCH", "FILE_OPERATION_FAILED", "INVALID_ARGUMENT"), what
            assert len(json.dumps(refused.body())) < 50_000, what
            assert (await bench.call("read", path="big.txt", line_count=1))["content"] == "line 0\n"
        assert tree(bench.root) == before


async def test_argv_goes_to_the_program_byte_for_byte_and_no_descriptor_leaks_in() -> None:
    words = ["$(touch owned)", "`id`", "; rm -rf .", "*", "a\nb", "", "'\"", "日本語", "-n", "--", "\\"]
    async with open_bench(files={"file.txt": "x\n"}) as bench:
        script = (
            "import json, os, sys; print(json.dumps([sys.argv[1:], sorted(map(int, os.listdir('/proc/self/fd')))]))"
        )
        ran = await bench.call("exec_command", command=["python3", "-c", script, *words])
        assert ran["exit_code"] == 0, ran
        argv, descriptors = json.loads(ran["chunk"])
        assert argv == words
        assert descriptors[:3] == [0, 1, 2]
        assert len(descriptors) == 4  # the fourth lists the directory
        assert tree(bench.root) == {"file.txt": b"x\n"}


async def test_a_command_that_cannot_be_one_is_refused() -> None:
    async with open_bench() as bench:
        for command in ([], [""], ["a\0b"], ["/bin/true", "a\0b"], ["x"] * 4097):
            refused = await refusal(bench, "exec_command", command=command)
            assert refused.code in ("INVALID_ARGUMENT", "INVALID_COMMAND"), command[:2]
        for env in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}, {"A\0": "x"}):
            refused = await refusal(bench, "exec_command", command=["/bin/true"], env=env)
            assert refused.code in ("INVALID_ARGUMENT", "INVALID_COMMAND"), env
        assert (await bench.call("list_processes"))["processes"] == []


async def test_a_program_in_the_workspace_never_stands_in_for_one_of_ours() -> None:
    trap = "#!/bin/sh\ntouch owned\n"
    names = (
        "rg",
        "bwrap",
        "python3",
        "python",
        "git",
        "sh",
        "env",
        "codespace.py",
        "trio.py",
        "json.py",
        "sitecustomize.py",
    )
    async with open_bench(files=dict.fromkeys(names, trap)) as bench:
        for name in names:
            (bench.root / name).chmod(0o755)
        await bench.call("find")
        await bench.call("search", pattern="touch")
        await bench.call("apply_patch", patch=add("new.txt"))
        await bench.call("exec_command", command=["true"])
        assert not (bench.root / "owned").exists()


async def test_hostile_text_comes_back_escaped_in_errors() -> None:
    async with open_bench() as bench:
        calls: dict[str, dict[str, Any]] = {
            "read": {"path": f"x{HOSTILE_TEXT}"},
            "apply_patch": {"patch": f"*** Begin Patch\n{HOSTILE_TEXT}\n*** End Patch\n"},
            "exec_command": {"command": [HOSTILE_TEXT]},
            "operation_status": {"operation_id": HOSTILE_TEXT},
            "process_status": {"process_id": HOSTILE_TEXT},
        }
        for tool, arguments in calls.items():
            refused = await refusal(bench, tool, **arguments)
            for character in "\x1b\x07\r\u202e\u200b":
                assert character not in refused.message + refused.next_step, (tool, refused.message)


async def test_claims_in_arguments_change_nothing() -> None:
    claims = {"approved": True, "user_id": "root", "network": True, "profile": "workspace-write", "approvals": "off"}
    async with open_bench(approvals="confirm", others={"locked": {"profile": "read-only"}}) as bench:
        held = await refusal(bench, "apply_patch", workspace_id="main", patch=add("a.txt"), **claims)
        assert held.code == "APPROVAL_REQUIRED"
        locked = await refusal(bench, "apply_patch", workspace_id="locked", patch=add("a.txt"), **claims)
        assert locked.code == "UNAUTHORIZED"
        assert tree(bench.root) == {}


async def test_no_tool_adds_widens_or_edits_a_workspace() -> None:
    async with open_bench(others={"locked": {"profile": "read-only"}}) as bench:
        before = bench.site.config.read_bytes()
        tools = (await bench.client.list_tools()).tools
        for tool in tools:
            assert not {"root", "profile", "network", "approvals", "sandbox"} & set(tool.input_schema["properties"])
            for workspace_id in ("/", str(bench.root), "../main", "MAIN", "main ", ""):
                if "workspace_id" in tool.input_schema["properties"]:
                    with pytest.raises(Refusal) as caught:
                        await bench.call(tool.name, **_filled(tool.input_schema), workspace_id=workspace_id)
                    assert caught.value.code in ("WORKSPACE_NOT_FOUND", "INVALID_ARGUMENT"), (tool.name, workspace_id)
        info = await bench.call("workspace_info", workspace_id="locked")
        assert info["profile"] == "read-only"
        assert bench.site.config.read_bytes() == before


def _filled(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the required arguments of a tool, but for the workspace."""
    values = {
        "patch": add("x.txt"),
        "path": "x",
        "paths": ["x"],
        "pattern": "x",
        "command": ["/bin/true"],
        "title": "x",
    }
    return {name: values[name] for name in schema.get("required", []) if name != "workspace_id"}


async def test_ids_of_others_and_of_nothing_are_not_found() -> None:
    async with open_bench() as bench:
        ran = await bench.call("exec_command", command=["/bin/true"])
        for wrong in (ran["operation_id"], "proc-", "proc-../../etc", "", "x" * 10_000, "proc-" + "a" * 24):
            for tool in ("process_status", "read_process", "terminate_process"):
                code = (await refusal(bench, tool, process_id=wrong)).code
                assert code in ("PROCESS_NOT_FOUND", "INVALID_ARGUMENT"), (tool, wrong[:20])
        assert (await refusal(bench, "operation_status", operation_id=ran["process_id"])).code == "OPERATION_NOT_FOUND"
        both = {"operation_id": ran["operation_id"], "operation_key": "k"}
        assert (await refusal(bench, "operation_status", **both)).code == "INVALID_ARGUMENT"
        assert (await refusal(bench, "operation_status")).code == "INVALID_ARGUMENT"
        for key in ("", "k" * 201, "line\nbreak", "\u202ekey", "nul\0"):
            refused = await refusal(bench, "apply_patch", patch=add("k.txt"), operation_key=key)
            assert refused.code == "INVALID_ARGUMENT", key
        assert tree(bench.root) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
ARGUMENTS: tuple[str, ...] = (
    "workspace_id",
    "path",
    "paths",
    "pattern",
    "patch",
    "expected_versions",
    "operation_key",
    "check_only",
)
ARGUMENTS += ("cwd", "env", "wait_seconds", "process_id", "cursor", "limit_bytes", "start_line", "encoding", "glob")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(st.dictionaries(st.sampled_from(ARGUMENTS), JSON, max_size=5), min_size=1, max_size=4))
def test_any_json_value_as_an_argument_is_answered_in_the_contracts_words(calls: list[dict[str, Any]]) -> None:
    async def send_all() -> None:
        async with open_bench(files={"file.txt": "x\n"}) as bench:
            tools = [tool.name for tool in (await bench.client.list_tools()).tools if tool.name != "exec_command"]
            for arguments in calls:
                for tool in tools:
                    await _any_answer(bench, tool, arguments)
            assert tree(bench.root) == {"file.txt": b"x\n"}

    trio.run(send_all)


async def _any_answer(bench: Bench, tool: str, arguments: dict[str, Any]) -> None:
    """Call a tool; any result is fine, and any refusal but INTERNAL. A malformed answer raises."""
    clean = json.loads(json.dumps(arguments).encode("utf-8", "replace"))
    with trio.fail_after(60):
        try:
            await bench.call(tool, **{name: value for name, value in clean.items() if name != "wait_seconds"})
        except Refusal as refused:
            if refused.code == "INTERNAL":
                raise


TOUCH = {"command": ["touch", "made"]}


def replace_by_link(root: Path, target: str) -> None:
    """Put a link where the root was, as somebody who may write beside it could."""
    root.rename(root.with_name("aside"))
    root.symlink_to(target)


@pytest.mark.parametrize("was_read", [True, False], ids=["after a read", "before anything"])
async def test_a_workspace_whose_root_was_replaced_is_refused(was_read: bool) -> None:
    async with open_bench(files={"file.txt": "x\n"}) as bench:
        if was_read:
            assert (await bench.call("read", path="file.txt"))["content"] == "x\n"
        outside = bench.root.with_name("outside")
        outside.mkdir()
        (outside / "passwd").write_text("secret\n")
        replace_by_link(bench.root, str(outside))
        calls = {"apply_patch": {"patch": add("x")}, "read": {"path": "passwd"}, "find": {}, "exec_command": TOUCH}
        for tool, arguments in calls.items():
            assert (await refusal(bench, tool, **arguments)).code not in ("INTERNAL", "FILE_NOT_FOUND"), tool
        assert [path.name for path in outside.iterdir()] == ["passwd"]
