"""A look at a workspace that is short of descriptors is refused, and never taken for one at a workspace with less."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import listener, pidmax
from codespace.sandbox.box import HOME, Prepared, Sandbox
from codespace.sandbox.inventory import git, gitaccount, gitconfig, scan, twins
from codespace.sandbox.inventory.gitaccount import Account
from codespace.sandbox.inventory.scan import Inventory
from codespace.sandbox.lasting import Look
from codespace.testing import processes
from codespace.testing.shortage import descriptors

ENOUGH = 16
"""Descriptors that a look never needs at once."""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A root in which each kind of look finds something: names, git, its configuration, hard links, mounts."""
    root = tmp_path / "root"
    (root / "below" / ".vscode").mkdir(parents=True)
    for name in ("", "below/inner"):
        subprocess.run(["git", "init", "-q", root / name], check=True)
    subprocess.run(["git", "-C", root, "config", "core.hooksPath", "below/hooks"], check=True)
    (root / "below" / "hooks").mkdir()
    for name in (".env", "below/.env", ".mcp.json"):
        (root / name).write_text("secret\n")
    os.link(root / ".mcp.json", root / "below" / "other name")
    return Workspace("w", str(root), "workspace-write", hidden_paths=(".env",))


def prepared(sandbox: Sandbox, workspace: Workspace) -> Prepared:
    return sandbox.prepare(
        workspace, command=["/bin/true"], cwd=".", env={"HOME": HOME}, protected=("/.mcp.json", "**/.vscode/")
    )


def test_a_look_that_is_short_of_descriptors_is_refused_and_masks_no_less(workspace: Workspace) -> None:
    whole = prepared(Sandbox(), workspace).plan
    ends = []
    for left in range(ENOUGH):
        sandbox = Sandbox()
        sandbox.standing()
        with descriptors(left):
            try:
                ends.append(prepared(sandbox, workspace).plan == whole)
            except Refusal:
                ends.append("refused")
    assert ends[0] == "refused"
    assert ends[-1] is True
    assert False not in ends


Looking = Callable[[Root, Inventory], object]
LOOKS: dict[str, Looking] = {
    "names": lambda root, _: scan.scan(root, hidden=(".env",), protected=("/.mcp.json",)),
    "hard links": lambda root, inventory: twins.names(root, inventory, git=True),
    "submodules": git.submodules,
    "repositories": lambda root, _: list(gitconfig.repositories(root, (".", "below/inner", "none"))),
    "the repository outside": lambda root, _: git.common_directory(root.path),
    "configuration": lambda root, _: gitconfig.places(root, None, Account()),
    "the account's configuration": lambda root, _: gitaccount.look(iter([f"{root.path}/.git/config"])),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_no_look_takes_what_a_shortage_kept_it_from_seeing_for_missing(workspace: Workspace, look: Looking) -> None:
    with Root.open(workspace.root) as root:
        inventory = scan.scan(root, hidden=(".env",), protected=("/.mcp.json",))
        whole = look(root, inventory)
        refusals = 0
        for left in range(ENOUGH):
            with descriptors(left):
                try:
                    assert look(root, inventory) == whole
                except (OSError, Refusal):
                    refusals += 1
        assert 0 < refusals < ENOUGH


@pytest.mark.parametrize(
    ("number", "is_short"),
    [(errno.EMFILE, True), (errno.ENFILE, True), (errno.ENOMEM, True), (errno.EACCES, False), (errno.EIO, False)],
)
def test_a_directory_that_cannot_be_listed_is_noted_but_for_a_shortage(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, number: int, is_short: bool
) -> None:
    """Of memory and of the whole machine's descriptors, which no test takes away."""
    with Root.open(workspace.root) as root:
        opening = root.open_listing

        def open_listing(path: str) -> int:
            if path == "below":
                raise OSError(number, os.strerror(number))
            return opening(path)

        monkeypatch.setattr(root, "open_listing", open_listing)
        if is_short:
            with pytest.raises(OSError, match=os.strerror(number)):
                scan.scan(root, hidden=(), protected=())
        else:
            assert scan.scan(root, hidden=(), protected=()).unreadable == ("below",)


def test_a_look_after_a_run_that_is_short_of_descriptors_does_not_say_that_nothing_was_planted(
    workspace: Workspace,
) -> None:
    run = prepared(Sandbox(), workspace)
    subprocess.run(["git", "init", "-q", Path(workspace.root, "planted")], check=True)
    whole = run.planted()
    assert whole
    for left in range(ENOUGH):
        with descriptors(left):
            try:
                assert run.planted() == whole
            except (OSError, Refusal):
                assert left < ENOUGH - 1


def test_a_look_that_was_short_of_something_is_no_answer_and_is_taken_again_by_the_next(
    capfd: pytest.CaptureFixture[str],
) -> None:
    answers = iter([OSError(24, "short"), "answer"])

    def look() -> str:
        if isinstance(found := next(answers), OSError):
            raise found
        return str(found)

    one = Look(look, "nothing")
    assert [one.recall(), one.recall(), one.recall()] == ["nothing", "answer", "answer"]
    assert capfd.readouterr().err == ""


def test_a_listener_inside_that_descriptors_are_short_for_leaves_no_child_and_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LISTENER_SECONDS", 20.0)
    with subprocess.Popen(["unshare", "--user", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        cat.stdin.write(b"up\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"up\n"
        ends = []
        children = processes.children()
        for left in range(8):
            with descriptors(left):
                try:
                    listener.listen(cat.pid).close()
                    ends.append("listens")
                except OSError:
                    ends.append("refused")
            assert processes.children() == children
    assert ends == sorted(ends, reverse=True)
    assert set(ends) == {"listens", "refused"}


def test_a_listener_that_there_is_no_descriptor_to_take_for_is_an_error_that_says_so() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(theirs, [b"bound"], [0])
        with descriptors(0), pytest.raises(OSError, match="Too many open files"):
            listener._receive(ours)


@pytest.mark.skipif(not pidmax.is_per_namespace(), reason="this kernel has one pid_max for the whole machine")
def test_a_limit_of_processes_that_descriptors_are_short_for_leaves_no_child() -> None:
    argv = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unshare:
        assert unshare.stdin is not None
        assert unshare.stdout is not None
        unshare.stdin.write(b"up\n")
        unshare.stdin.flush()
        assert unshare.stdout.readline() == b"up\n"
        inside = int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text())
        ends = []
        children = processes.children()
        for left in range(6):
            with descriptors(left):
                try:
                    pidmax.limit(inside, 500)
                    ends.append("limited")
                except OSError:
                    ends.append("refused")
            assert processes.children() == children
    assert ends == sorted(ends, reverse=True)
    assert set(ends) == {"limited", "refused"}
