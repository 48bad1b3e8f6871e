"""Attacks on the kernel, on privileges and on neighbours (SANDBOX 5: 7 to 9, 20 to 24, 27, 39)."""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from codespace.sandbox import seccomp

from .cage import CALLS, Cage

EPERM, ENOSYS = "1", "38"
CALL = "my ($n, @rest) = map { $_ + 0 } @ARGV; my $r = syscall($n, @rest); print $r < 0 ? $! + 0 : 'worked'"


def call(cage: Cage, name: str, *arguments: object) -> str:
    return str(cage.perl(CALL, str(CALLS[name]), *map(str, arguments)).out)


def test_no_capability_no_new_privilege_and_a_filter(cage: Cage) -> None:
    status = dict(line.split(":", 1) for line in cage.sh("cat /proc/self/status").out.splitlines())
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


def test_calls_that_attacks_begin_with_are_denied(cage: Cage) -> None:
    assert call(cage, "ptrace", 0, 0, 0, 0) == EPERM
    assert call(cage, "mount", 0, 0, 0, 0, 0) == EPERM
    assert call(cage, "bpf", 0, 0, 0) == EPERM
    assert call(cage, "setns", 0, 0) == EPERM
    assert call(cage, "clone3", 0, 0) == ENOSYS
    for number in (457, 458, 467):  # statmount, listmount, open_tree_attr
        assert cage.perl(CALL, str(number), "0", "0", "0", "0", "0").out == EPERM
    for flag in (0x80, 0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert call(cage, "unshare", flag) == EPERM
        assert call(cage, "unshare", flag | 0x200) == EPERM  # with another flag beside it
    assert call(cage, "unshare", 0x200) == "worked"  # CLONE_FS, which threads use


def test_clone_makes_processes_and_no_namespaces(cage: Cage) -> None:
    make = (
        "my $r = syscall($ARGV[0] + 0, $ARGV[1] + 0, 0, 0, 0, 0); exit 0 if $r == 0; print $r < 0 ? $! + 0 : 'worked'"
    )
    number = str(CALLS["clone"])
    assert cage.perl(make, number, str(17)).out == "worked"
    assert cage.perl(make, number, str(0x10000000 | 17)).out == EPERM
    assert cage.perl(make, number, str(0x20000 | 17)).out == EPERM


@pytest.mark.parametrize(
    "words",
    [
        "unshare -Ur true",
        "unshare -m true",
        "chroot / true",
        "mount -t tmpfs none /tmp",
        "umount /tmp",
        "nsenter -t 1 -m true",
    ],
)
def test_programs_that_change_namespaces_and_mounts_fail(cage: Cage, words: str) -> None:
    assert cage.run(words.split()).code != 0
    if words == "unshare -Ur true":
        assert cage.plainly(words.split()).code == 0


def test_a_sandbox_cannot_be_made_inside_the_sandbox(cage: Cage) -> None:
    inner = [cage.bubblewrap, "--unshare-user", "--ro-bind", "/", "/", "true"]
    assert cage.plainly(inner).code == 0
    folder = os.path.dirname(os.path.dirname(os.path.dirname(cage.bubblewrap)))
    result = cage.having(readable_paths=(folder,)).run(inner)
    assert result.code != 0
    assert "namespace" in result.err or "Operation not permitted" in result.err


def test_no_file_gets_a_set_user_id_or_set_group_id_bit(cage: Cage) -> None:
    attack = r"""
    sub try { my ($name, $ok) = @_; print "$name " if $ok }
    open F, '>', 'f'; close F;
    try('chmod', chmod 04755, 'f'); try('group', chmod 02755, 'f'); open F, '<', 'f'; try('fchmod', chmod 06755, \*F);
    use Fcntl; umask 0; try('open', sysopen(F, 'g', O_CREAT | O_RDWR, 04755)); try('fine', chmod 01755, 'f');
    use POSIX; try('mknod', !syscall($ARGV[0], 'h', 0104755, 0)) if $ARGV[0];
    """
    mknod = {"x86_64": "133"}.get(os.uname().machine, "")
    assert "chmod" in cage.plainly(["/usr/bin/perl", "-e", attack, mknod]).out
    for path in cage.root.iterdir():
        path.unlink()
    assert cage.perl(attack, mknod).out == "fine "
    made = [path.stat().st_mode for path in cage.root.iterdir()]
    assert made
    assert not any(mode & (stat.S_ISUID | stat.S_ISGID) for mode in made)


def test_no_device_node_can_be_made(cage: Cage) -> None:
    assert cage.sh("mknod d c 1 3").code != 0


def test_a_program_of_the_system_that_has_the_set_user_id_bit_gains_nothing(cage: Cage) -> None:
    raising = [path for path in ("/usr/bin/su", "/usr/bin/sudo") if os.path.exists(path)]
    assert raising, "this system has neither su nor sudo"
    for program in raising:
        assert os.stat(program).st_mode & stat.S_ISUID
        result = cage.run([program, "-c", "id -u"])
        assert (result.code == 0, result.out) == (False, "")


def test_a_program_of_roots_in_the_workspace_that_has_the_set_user_id_bit_gains_nothing(cage: Cage) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can put a program of root's into a workspace, and this run is not root's")
    mine = cage.put("id", mode=0o755)
    subprocess.run(["/bin/cp", "/usr/bin/id", str(mine)], check=True)
    os.chown(mine, 0, 0)
    mine.chmod(0o4755)
    assert cage.sh("./id -u").out.strip() == str(cage.uid)
    if cage.uid:
        assert "euid=0" in cage.plainly(["./id"]).out


def test_nothing_can_be_typed_into_a_terminal(cage: Cage) -> None:
    attack = (
        "for my $n (0x5412, 0x541C, 0x100005412) { my $c = 'x'; print ioctl(STDIN, $n, $c) ? 'typed ' : $! + 0 . ' ' }"
    )
    ours, theirs = os.openpty()
    try:
        result = cage.sh(f"perl -e '{attack.replace(chr(39), chr(34))}'")
        assert set(result.out.split()) == {EPERM}, result
    finally:
        os.close(ours)
        os.close(theirs)


def test_no_directory_can_be_encrypted(cage: Cage) -> None:
    """Its names would come and go with a key, unseen by its times: a git directory could hide from the next look."""
    ioctl = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
    for request in (0x800C6613, 0xC0506617, 0xC0406618, 0xC0406619):
        assert cage.perl(CALL, str(ioctl), "0", str(request), "0").out == EPERM, hex(request)


def test_no_snapshot_of_a_subvolume_can_be_made_nor_one_be_made_or_destroyed(cage: Cage) -> None:
    """A snapshot of a root on btrfs has what is hidden in it, under another name and unmasked."""
    ioctl = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
    for request in (0x50009401, 0x50009417, 0x5000940E, 0x50009418, 0x5000940F, 0x5000943F):
        words = (CALL, str(ioctl), "0", str(request), "0")
        assert cage.perl(*words).out == EPERM, hex(request)
        assert cage.plainly(["/usr/bin/perl", "-e", *words]).out != EPERM


def test_no_lease_can_be_taken_that_keeps_others_from_opening_a_file(cage: Cage) -> None:
    cage.put("file")
    attack = "open(my $f, '+<', 'file') or die; print fcntl($f, $_, 1) ? 'y ' : $! + 0 . ' ' for 1024, 1040, 2"
    assert cage.perl(attack).out.split() == [EPERM, EPERM, "y"]  # the last is F_SETFD
    assert cage.plainly(["/usr/bin/perl", "-e", attack]).out.split()[0] == "y"


def test_no_other_discipline_can_be_given_to_a_terminal(cage: Cage) -> None:
    attack = "open(my $m, '+<', '/dev/ptmx') or die; my $n = pack('i', 0); print ioctl($m, 0x5423, $n) ? 'set' : $! + 0"
    assert cage.perl(attack).out == EPERM
    assert cage.plainly(["/usr/bin/perl", "-e", attack]).out == "set"


def test_no_layer_can_be_laid_over_a_connection(cage: Cage) -> None:
    setting = "print setsockopt($s, 6, $$_[0], $$_[1]) ? 'y ' : $! + 0 . ' ' for [31, 'tls'], [1, 1]"
    attack = f"socket(my $s, 2, 1, 0) or die; {setting}"
    assert cage.perl(attack).out.split() == [EPERM, "y"]
    assert cage.plainly(["/usr/bin/perl", "-e", attack]).out.split()[0] != EPERM


def test_a_call_that_is_younger_than_the_list_is_unknown() -> None:
    """Asked of the filter itself: where the kernel has no such call either, its own answer is the same."""
    for number in (470, 471, 511):
        assert answer(number) == DENIED | int(ENOSYS)
    for number in (451, 463, 469):  # cachestat, setxattrat, file_setattr
        assert answer(number) == ALLOWED
    if os.uname().machine == "x86_64":
        assert answer(0x4000_0000 | CALLS["mount"]) == answer(0x4000_0000) == DENIED | int(ENOSYS)  # those of x32


ALLOWED, DENIED = 0x7FFF_0000, 0x0005_0000


def answer(number: int) -> int:
    """Return what the filter says to a call of this machine with arguments of nothing.

    Source: linux/bpf_common.h, linux/seccomp.h.
    """
    code = [struct.unpack_from("=HBBI", seccomp.program(), start) for start in range(0, len(seccomp.program()), 8)]
    architecture = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}[os.uname().machine]
    call = struct.pack("=IIQ6Q", number, architecture, *[0] * 7)
    loaded = position = 0
    while True:
        operation, if_so, if_not, value = code[position]
        position += 1
        match operation:
            case 0x06:
                return int(value)
            case 0x20:
                (loaded,) = struct.unpack_from("=I", call, value)
            case 0x54:
                loaded &= value
            case 0x05:
                position += value
            case 0x15 | 0x25 | 0x35 | 0x45:
                holds = {0x15: loaded == value, 0x25: loaded > value, 0x35: loaded >= value, 0x45: loaded & value}
                position += if_so if holds[operation] else if_not
            case _:
                raise AssertionError(f"no such operation is known here: {operation:#x}")


def test_a_request_with_its_upper_half_filled_is_seen_through(cage: Cage) -> None:
    """The kernel looks at 32 bits of a request; a filter that compares 64 would let these through."""
    ioctl = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
    for request in (0x5412, 0x1_0000_5412, 0x541C, 0xFFFF_0000_541C):
        assert cage.perl(CALL, str(ioctl), "0", str(request), "0").out == EPERM, hex(request)
    assert cage.perl(CALL, str(ioctl), "0", str(0x5401), "0").out != EPERM  # TCGETS is only not for /dev/null


MOUNT_BY_I386 = bytes.fromhex("b815000000 31db 31c9 31d2 31f6 31ff cd80 f7d8 89c7 b83c000000 0f05".replace(" ", ""))
"""mov eax, 21; ebx to edi: 0; int 0x80; exit(-eax)"""


def test_the_calls_of_another_word_size_do_not_get_through(cage: Cage) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip(f"{os.uname().machine} has no second way into the kernel that could be tried by hand")
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = 120 + len(MOUNT_BY_I386)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, size, size, 4096)
    program = cage.put("program", mode=0o755)
    program.write_bytes(head + segment + MOUNT_BY_I386)
    outside = cage.plainly([str(program)]).code
    if outside < 0:
        pytest.skip("this kernel takes no 32-bit calls at all (CONFIG_IA32_EMULATION)")
    assert outside not in (0, int(ENOSYS))
    assert cage.run([str(program)]).code == int(ENOSYS)


def test_only_plain_sockets_can_be_opened(cage: Cage) -> None:
    # UNIX, INET, INET6, the list of interfaces
    plain = ((1, 1, 0), (1, 5, 0), (2, 1, 0), (2, 1, 6), (2, 2 | 0o2000000, 17), (10, 1, 0), (10, 2, 0), (16, 3, 0))
    raw = ((2, 3, 1), (2, 3, 255), (10, 3, 58), (2, 10, 0), (2, 3 | 0o4000, 1))
    # SCTP, DCCP, L2TP, multipath TCP, SMC, UDP-Lite, echo requests; and SCTP by its kind alone
    rare = ((2, 1, 132), (10, 6, 33), (2, 2, 115), (2, 1, 262), (10, 1, 256), (2, 2, 136), (2, 2, 1), (2, 5, 0))
    other = (
        (17, 3, 0),
        (17, 2, 3),
        (16, 3, 9),
        (40, 1, 0),
        (38, 5, 0),
        (29, 3, 1),
        (5, 2, 0),
    )  # PACKET, audit, VSOCK, ALG
    attack = "".join(f"print socket(my $f, {a}, {b}, {c}) ? 'y' : $! + 0;" for a, b, c in (*plain, *raw, *rare, *other))
    assert cage.perl(attack).out == "y" * len(plain) + EPERM * len(raw + rare + other)


def test_the_environment_of_the_daemon_is_nowhere(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-value")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent.sock")
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/docker.sock")
    script = "env; cat /proc/*/environ | tr '\\0' '\\n'; ls /run /tmp"
    result = cage.sh(script, env={"MINE": "mine"})
    assert "MINE=mine" in result.out
    assert not any(word in result.out for word in ("canary-value", "agent.sock", "docker.sock", "DBUS"))


def test_variables_that_act_on_a_loader_act_on_the_command_only(cage: Cage) -> None:
    cage.put("lib/libc.so.6", "no library\n", mode=0o755)
    result = cage.run(["/usr/bin/printenv", "LD_LIBRARY_PATH"], env={"LD_LIBRARY_PATH": f"{cage.root}/other"})
    assert result.out == f"{cage.root}/other\n"
    broken = cage.run(["/usr/bin/printenv"], env={"LD_LIBRARY_PATH": f"{cage.root}/lib"})
    assert broken.code == 127  # the command could not be loaded; bubblewrap and the gate could


def test_variables_that_the_gates_shell_cannot_name_or_has_itself_arrive(cage: Cage) -> None:
    env = {"A-B": "1", "my.prop": "2", "npm_config_@x:registry": "3", "IFS": "x", "OPTIND": "7", "-x": "4"}
    result = cage.run(["/usr/bin/printenv", "-0"], env=env)
    assert env.items() <= dict(line.split("=", 1) for line in result.out.split("\0") if line).items()


def test_an_abstract_socket_of_the_host_is_refused(cage: Cage) -> None:
    name = f"codespace-attack-{os.getpid()}"
    attack = "use IO::Socket::UNIX; print IO::Socket::UNIX->new(Peer => \"\\0$ARGV[0]\") ? 'reached' : 'refused'"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        assert cage.plainly(["/usr/bin/perl", "-e", attack, name]).out == "reached"
        assert cage.perl(attack, name).out == "refused"


COUNT = "set -- /proc/[0-9]*; echo $#"
# By the shell itself: whether a process that it starts for this is seen too depends on who comes first.
ALONE = "2"
# The shell and bubblewrap's process 1.


def test_no_process_of_the_host_can_be_seen_or_killed(cage: Cage) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as bystander:
        try:
            result = cage.sh(f"kill -9 {bystander.pid}; kill -9 -1; {COUNT}")
            assert bystander.poll() is None
            assert result.out.strip().isdecimal() is False or int(result.out) < 10
            assert cage.sh(f"kill -9 {bystander.pid}; {COUNT}").out.strip() == ALONE
        finally:
            bystander.kill()


def test_two_runs_see_nothing_of_each_other(cage: Cage) -> None:
    """The second run is made while the first, which is all set up, waits at its gate."""
    look = (
        f"ls /tmp | grep mine; {COUNT}; "
        "ls -l /proc/*/exe 2>/dev/null | grep -c perl; "
        "perl -MIO::Socket::INET -e "
        '\'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:4444") ? "free" : "taken"\''
    )
    hold = (
        "use IO::Socket::INET; my $l = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1:4444') or die; "
        "open F, '>/tmp/mine'; close F; open G, '>started'; close G; 1 until -e 'seen'; print 'held'"
    )

    def both() -> tuple[str, str]:
        held: list[str] = []
        first = threading.Thread(target=lambda: held.append(holding.perl(hold).out))
        first.start()
        while not (cage.root / "started").exists() and first.is_alive():
            os.sched_yield()
        seen = holding.sh(look).out
        (cage.root / "seen").touch()
        first.join()
        return held[0], seen

    holding = dataclasses.replace(cage, uid=os.geteuid()) if cage.uid == os.geteuid() else InPlace(**vars(cage))
    held, seen = cage.does(both)
    assert held == "held"
    assert seen.split() == [ALONE, "0", "free"], seen


class InPlace(Cage):
    """The same, for code that already runs as the account."""

    def does(self, act: Callable[[], Any]) -> Any:
        return act()
