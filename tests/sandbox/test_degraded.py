"""The lower rung: what Landlock alone keeps, what it does not, and that it is called what it is.

Attacks are run as root and as an unprivileged account; whatever is withstood works without the rung (`plainly`).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.contract import SpawnRequest, Workspace
from codespace.errors import Refusal
from codespace.runner.inprocess import open_runner
from codespace.runner.supervisor import Supervisor
from codespace.sandbox import degraded, landlock, pidmax, report
from codespace.sandbox.box import Sandbox
from codespace.sandbox.probe import Standing
from helper.monitor.order import restrict

from .cage import PATH, Cage, Result, accounts, bubblewraps, caged

VERSION = landlock.version()
SECONDS = 60.0


def need_landlock() -> None:
    if not VERSION:
        pytest.skip("this kernel has no Landlock: there is no lower rung here, and none is ever chosen")


@pytest.fixture(params=accounts(), ids=str)
def held(request: pytest.FixtureRequest) -> Iterator[Cage]:
    """Lend an account with a workspace; what it runs by `locked` has Landlock, and nothing else."""
    need_landlock()
    with caged(request.param, bubblewraps()[0]) as cage:
        yield cage


def locked(cage: Cage, *command: str, readable: tuple[str, ...] = ()) -> Result:
    """Run a command as the cage's account under the ruleset of the lower rung."""
    home = cage.folder(str(cage.base / "private"))

    def inside() -> Result:
        ruleset = degraded.ruleset((cage.workspace.root, str(home)), readable)
        try:
            done = subprocess.run(
                command,
                cwd=cage.workspace.root,
                env={"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8"},
                pass_fds=(ruleset,),
                preexec_fn=lambda: restrict(ruleset),  # as the monitor does it, in the child before it execs
                capture_output=True,
                text=True,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        finally:
            os.close(ruleset)
        return Result(done.returncode, done.stdout, done.stderr)

    result: Result = cage.does(inside)
    return result


def sh(cage: Cage, script: str, **more: Any) -> Result:
    return locked(cage, "/bin/sh", "-c", script, **more)


def perl(cage: Cage, script: str, *arguments: str) -> Result:
    return locked(cage, "/usr/bin/perl", "-e", script, *arguments)


def account(cage: Cage) -> dict[str, Any]:
    """Return what makes a child of this process one of the cage's account."""
    return {} if cage.uid == os.geteuid() else {"user": cage.uid, "group": cage.uid, "extra_groups": []}


# --- what it withstands ---


def test_nothing_is_written_outside_the_root_and_the_home(held: Cage) -> None:
    beside = held.base / "home" / "made"
    places = ("/etc", "/usr", "/var", "/opt", "/tmp", "/dev/shm", "/", str(beside.parent))
    tries = "; ".join(f"echo x >{place}/codespace-made" for place in places)
    result = sh(held, f'{tries}; echo in >made && echo own >"$HOME/made" && cat made "$HOME/made"')
    assert result.out == "in\nown\n"
    assert [place for place in places if os.path.exists(f"{place}/codespace-made")] == []
    assert held.plainly(["/bin/sh", "-c", f"echo x >{beside}"]).code == 0
    assert beside.read_text() == "x\n"


def test_a_file_outside_is_not_changed_by_any_call_that_writes_moves_or_removes(held: Cage) -> None:
    victim = held.base / "home" / ".netrc"
    attacks = [
        f"echo x >>{victim}",
        f"rm {victim}",
        f"mv {victim} moved",
        f"ln {victim} linked",
        f"mv made {victim}",
        f"ln -s {victim} link; echo x >link",
        f"mkdir {victim.parent}/made",
        f"ln -s /etc/passwd {victim.parent}/made",
        f"mkfifo {victim.parent}/made",
    ]
    if VERSION >= 3:
        attacks.append(f"perl -e 'truncate(q({victim}), 0)'")
    before = sorted(os.listdir(victim.parent))
    for attack in attacks:
        held.put("made")
        sh(held, attack)
        assert (victim.read_text(), sorted(os.listdir(victim.parent))) == ("canary-secret\n", before), attack
    assert held.plainly(["/bin/sh", "-c", f"echo x >>{victim}"]).code == 0
    assert victim.read_text() == "canary-secret\nx\n"


def test_secrets_of_the_home_cannot_be_read_by_any_way_there(held: Cage) -> None:
    secret = held.base / "home" / ".ssh" / "id_ed25519"
    os.symlink(secret, held.root / "link")
    up = "/".join([".."] * 8)
    for way in (secret, "link", f"{up}{secret}", f"/proc/self/root{secret}", f"/proc/self/cwd/{up}{secret}"):
        assert held.plainly(["cat", str(way)]).out == "canary-secret\n"
        result = sh(held, f"cat {way}")
        assert (result.out, result.code) == ("", 1), way
    assert sh(held, f"ls -a {secret.parent}").out == ""
    assert sh(held, f"cat {secret}", readable=(str(secret.parent),)).out == "canary-secret\n"  # as the operator says


def test_secrets_of_the_system_cannot_be_read_by_root_either(held: Cage) -> None:
    assert Path("/etc/shadow").exists()
    assert sh(held, "cat /etc/shadow /etc/shadow- /etc/gshadow").out == ""
    assert "root:" in sh(held, "cat /etc/passwd").out
    if held.uid == 0:
        assert "root:" in held.plainly(["cat", "/etc/shadow"]).out


def test_programs_of_a_home_are_not_run(held: Cage) -> None:
    tool = held.base / "home" / "tool"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    held.put("own", "#!/bin/sh\necho own\n", mode=0o755)
    assert held.plainly([str(tool)]).out == "ran\n"
    assert sh(held, f"{tool}; ./own").out == "own\n"


def test_devices_cannot_be_made_nor_the_disk_be_opened(held: Cage) -> None:
    assert sh(held, "mknod made b 7 0; mknod zero c 1 5").code != 0
    assert list(held.root.iterdir()) == []
    assert sh(held, "ls /dev; cat /dev/mem /dev/kmsg").out == ""
    assert sh(held, "echo x >/dev/null && head -c 1 /dev/zero | wc -c").out.strip() == "1"


def test_a_terminal_of_the_account_can_neither_be_written_on_nor_listened_to(held: Cage) -> None:
    """There a person is asked what to grant."""
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        os.chown(name, held.uid, held.uid)
        os.write(master, b"typed\n")
        assert sh(held, f"head -n 1 <{name}; echo forged >{name}").out == ""
        os.set_blocking(master, False)
        assert os.read(master, 100) == b"typed\r\n"  # the echo alone
        assert held.plainly(["/bin/sh", "-c", f"head -n 1 <{name}; echo forged >{name}"]).out == "typed\n"
        assert os.read(master, 100) == b"forged\r\n"
    finally:
        os.close(master)
        os.close(slave)


REACH = 'use IO::Socket::INET; print IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 5) ? "reached" : "no: $!"'
LISTEN = 'use IO::Socket::INET; print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:0") ? "up" : "no: $!"'


def test_no_tcp_connection_is_opened_nor_taken(held: Cage) -> None:
    if VERSION < 4:
        pytest.skip(f"this kernel's Landlock is version {VERSION}; TCP is its affair from 4 on (Linux 6.7)")
    with socket.create_server(("127.0.0.1", 0)) as sentinel:
        sentinel.setblocking(False)
        where = f"127.0.0.1:{sentinel.getsockname()[1]}"
        assert perl(held, REACH, where).out == "no: Permission denied"
        assert perl(held, LISTEN).out == "no: Permission denied"
        with pytest.raises(BlockingIOError):
            sentinel.accept()
        assert held.plainly(["perl", "-e", REACH, where]).out == "reached"
        sentinel.accept()[0].close()
        assert held.plainly(["perl", "-e", LISTEN]).out == "up"


def test_no_signal_and_no_abstract_socket_reaches_a_process_outside(held: Cage) -> None:
    if VERSION < 6:
        pytest.skip(f"this kernel's Landlock is version {VERSION}; signals are its affair from 6 on (Linux 6.12)")
    with subprocess.Popen(["sleep", "987670"], **account(held)) as victim, socket.socket(socket.AF_UNIX) as abstract:
        try:
            abstract.bind(f"\0codespace-{os.getpid()}-{held.uid}")
            abstract.listen()
            talk = (
                "use Socket; socket my $s, AF_UNIX, SOCK_STREAM, 0;"
                'print connect($s, pack("S a*", AF_UNIX, "\\0$ARGV[0]")) ? "reached" : "no"'
            )
            name = f"codespace-{os.getpid()}-{held.uid}"
            assert perl(held, talk, name).out == "no"
            assert held.plainly(["perl", "-e", talk, name]).out == "reached"
            assert sh(held, f"kill -TERM {victim.pid}").out == ""
            assert victim.poll() is None
            assert held.plainly(["kill", "-TERM", str(victim.pid)]).code == 0
            assert victim.wait(SECONDS) == -signal.SIGTERM
        finally:
            victim.kill()


# --- what it does not, and that this is said ---


def test_what_gets_through_is_what_the_report_names(held: Cage) -> None:
    """Each of these is an attack that the whole sandbox stops; where one fails here, the sentence has to go."""
    outside = held.base / "home" / "mine"
    outside.write_text("x\n")
    outside.chmod(0o600)
    os.chown(outside, held.uid, held.uid)
    told = report.facts(Standing("landlock", None, ("a cause",), VERSION), replace(held.workspace, allow_degraded=True))
    (sentence,) = [each for each in told["caveats"] if each.startswith("Only Landlock")]

    assert sh(held, f"chmod 644 {outside} && touch -d @1 {outside}").code == 0
    assert (outside.stat().st_mode & 0o777, outside.stat().st_mtime) == (0o644, 1.0)
    assert "modes, owners and times of files outside" in sentence

    with socket.socket(type=socket.SOCK_DGRAM) as sentinel:
        sentinel.bind(("127.0.0.1", 0))
        sentinel.settimeout(SECONDS)
        send = 'use IO::Socket::INET; IO::Socket::INET->new(Proto => "udp", PeerAddr => $ARGV[0])->send("out")'
        perl(held, send, f"127.0.0.1:{sentinel.getsockname()[1]}")
        assert sentinel.recv(10) == b"out"
    assert "sending datagrams" in sentence

    with socket.socket(socket.AF_UNIX) as listening:
        place = held.base / "home" / "socket"
        listening.bind(str(place))
        place.chmod(0o777)
        listening.listen()
        talk = 'use IO::Socket::UNIX; print IO::Socket::UNIX->new(Peer => $ARGV[0]) ? "reached" : "no: $!"'
        assert perl(held, talk, str(place)).out == "reached"
    assert "sockets with a path" in sentence

    with subprocess.Popen(["sleep", "987671"], env={"TOKEN": "canary"}, **account(held)) as neighbour:
        try:
            _wait_environ(neighbour.pid)
            look = f"tr '\\0' '\\n' </proc/{neighbour.pid}/environ"
            assert held.plainly(["/bin/sh", "-c", look]).out == "TOKEN=canary\n"
            seen = "canary" in sh(held, look).out
            assert held.uid == 0 or not seen
            # A capability that root's commands have is enough for it on newer kernels only; they are told of it on all.
            assert seen == (held.uid == 0) or pidmax.kernel() < (6, 18)
            assert "987671" in sh(held, f"tr '\\0' '\\n' </proc/{neighbour.pid}/cmdline").out
        finally:
            neighbour.kill()
    assert "seeing other processes and their command lines" in sentence
    # The report is this account's: an unprivileged daemon has no such sentence to say.
    assert ("the environments of other processes" in str(told["caveats"])) == (os.geteuid() == 0)

    held.put(".git/config")
    held.put("hidden")
    assert sh(held, "mkdir .git/hooks && echo x >.git/hooks/pre-commit && mv .git other && cat hidden").code == 0
    assert "git directories, protected and hidden paths" in sentence


def _wait_environ(pid: int) -> None:
    """Return once a child has become its program."""
    deadline = time.monotonic() + SECONDS
    while b"canary" not in Path(f"/proc/{pid}/environ").read_bytes():
        assert time.monotonic() < deadline


WORKSPACE = Workspace("w", "/srv/project", profile="workspace-write")
DEGRADED = replace(WORKSPACE, allow_degraded=True)


def test_the_rung_is_told_as_degraded_area_by_area_and_with_what_this_kernel_lacks() -> None:
    facts = report.facts(Standing("landlock", None, ("no bubblewrap",), 7), DEGRADED)
    assert (facts["command_sandbox"], facts["network_enforcement"]) == ("landlock", "none")
    assert set(facts["sandbox"]["degraded"]) == {
        "filesystem",
        "git",
        "network",
        "syscalls",
        "limits",
        "process_tree",
    }
    assert facts["sandbox"]["filesystem"]["enforcement"] == "landlock"
    assert facts["sandbox"]["filesystem"]["hidden"] == []
    assert "no bubblewrap" in str(facts["reasons"])
    assert "all rights" not in str(facts["caveats"])
    assert "does not stop TCP" not in str(facts["caveats"])
    older = str(report.facts(Standing("landlock", None, ("no bubblewrap",), 2), DEGRADED)["caveats"])
    for lack in ("emptying files", "TCP connections", "signals to other processes"):
        assert lack in older
    assert "TCP connections" not in str(report.facts(Standing("landlock", None, (), 4), DEGRADED)["caveats"])


def test_where_it_is_not_allowed_nothing_is_in_force_and_the_choice_is_named() -> None:
    standing = Standing("landlock", None, ("no bubblewrap",), 7)
    facts = report.facts(standing, WORKSPACE)
    assert (facts["command_sandbox"], facts["exec_available"], facts["sandbox"]["degraded"]) == ("none", True, [])
    assert facts["sandbox"]["filesystem"]["enforcement"] == "none"
    assert "all rights" in str(facts["caveats"])
    assert "`allow_degraded`" in str(facts["reasons"])
    for demanding in (replace(WORKSPACE, sandbox="required"), replace(WORKSPACE, network="enabled")):
        for allowed in (False, True):
            told = report.facts(standing, replace(demanding, allow_degraded=allowed))
            assert told["exec_available"] is False
            assert "could be had" not in str(told["reasons"])


# --- through the runner ---


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    need_landlock()
    (tmp_path / "root").mkdir()
    with trio.fail_after(SECONDS):
        async with Supervisor(str(tmp_path / "state"), sandbox=Sandbox(str(tmp_path / "no-bubblewrap"))) as opened:
            yield opened


async def run(
    supervisor: Supervisor, workspace: Workspace, script: str, name: str, *, tty: bool = False
) -> tuple[str, str]:
    descriptor = os.open(workspace.root, os.O_PATH | os.O_DIRECTORY)
    try:
        request = SpawnRequest(name, ("sh", "-c", script), ".", {}, 30.0, tty=tty)
        spawned = await supervisor.spawn(workspace, request, descriptor)
    finally:
        os.close(descriptor)
    assert spawned.network == "none"
    await supervisor.wait_exit(name)
    chunk = await supervisor.output(name, cursor=0, stream="combined", limit_bytes=65_536, encoding="text")
    return spawned.sandbox, chunk.text


async def test_a_run_says_landlock_where_it_is_allowed_and_none_where_it_is_not(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("canary\n")
    script = (
        f"cat {tmp_path}/secret; echo x >{tmp_path}/new; echo in >file; cat file; "
        "echo h >$HOME/h && cat $HOME/h; git --version"
    )
    plain = Workspace("w", str(tmp_path / "root"), profile="workspace-write")
    sandbox, text = await run(supervisor, plain, script, "proc-1")
    assert sandbox == "none"
    assert "canary" in text  # nothing is in force, and it is said
    (tmp_path / "new").unlink()
    degraded_ = Workspace("w", str(tmp_path / "root"), profile="workspace-write", allow_degraded=True)
    sandbox, text = await run(supervisor, degraded_, script, "proc-2")
    assert sandbox == "landlock"
    assert "canary" not in text
    assert [line for line in text.splitlines() if "denied" not in line][:2] == ["in", "h"]
    assert "git version" in text
    assert not (tmp_path / "new").exists()


async def test_a_run_in_a_terminal_opens_that_by_its_names(supervisor: Supervisor, tmp_path: Path) -> None:
    allowed = Workspace("w", str(tmp_path / "root"), profile="workspace-write", allow_degraded=True)
    script = 'echo one >/dev/stderr; echo two >/dev/tty; echo three >"$(tty)"'
    assert await run(supervisor, allowed, script, "proc-1", tty=True) == ("landlock", "one\r\ntwo\r\nthree\r\n")


async def test_tcp_is_refused_to_a_run_of_the_rung(supervisor: Supervisor, tmp_path: Path) -> None:
    if VERSION < 4:
        pytest.skip(f"this kernel's Landlock is version {VERSION}; TCP is its affair from 4 on (Linux 6.7)")
    with socket.create_server(("127.0.0.1", 0)) as sentinel:
        script = f"perl -e '{REACH}' 127.0.0.1:{sentinel.getsockname()[1]}"
        plain = Workspace("w", str(tmp_path / "root"), profile="workspace-write")
        assert await run(supervisor, plain, script, "proc-1") == ("none", "reached")
        allowed = replace(plain, allow_degraded=True)
        assert await run(supervisor, allowed, script, "proc-2") == ("landlock", "no: Permission denied")


async def test_network_and_a_required_sandbox_are_refused_before_anything_runs(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    allowed = Workspace("w", str(tmp_path / "root"), profile="workspace-write", allow_degraded=True)
    for number, demanding in enumerate((replace(allowed, network="enabled"), replace(allowed, sandbox="required"))):
        with pytest.raises(Refusal) as caught:
            await run(supervisor, demanding, "touch made", f"proc-{number}")
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
    assert not (tmp_path / "root/made").exists()


@pytest.mark.parametrize("allowed", [False, True])
async def test_workspace_info_has_it_from_the_runner(tmp_path: Path, allowed: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    workspace = Workspace("w", str(root), profile="workspace-write", allow_degraded=allowed)
    with trio.fail_after(SECONDS):
        async with open_runner(
            state_dir=str(tmp_path / "state"),
            rg_path=None,
            bwrap_path=None,
            retention_seconds=60,
            wall_clock=time.time,
            sandbox=Sandbox(str(tmp_path / "no-bubblewrap")),
        ) as runner:
            facts = await runner.describe(workspace)
    assert facts["command_sandbox"] == ("landlock" if allowed and VERSION else "none")
    assert facts["network_enforcement"] == "none"
    assert bool(facts["sandbox"]["degraded"]) == (allowed and VERSION > 0)
    assert shutil.which("no-bubblewrap") is None
    assert "no-bubblewrap" in str(facts["reasons"])
