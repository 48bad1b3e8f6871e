"""Attacks on files outside the workspace, and on the way out of it (SANDBOX 5: 1-6, 10, 35, 36, 41-43, 46, 48)."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codespace import limits
from codespace.errors import Refusal
from codespace.sandbox.spawn import NotStarted
from codespace.sandbox.system import Etc

from .cage import UNPRIVILEGED, Cage, accounts, bubblewraps, caged

GROUP = UNPRIVILEGED + 1
TRY_WRITING = """
for path in /etc/codespace-attack /usr/codespace-attack /usr/local/codespace-attack /opt/codespace-attack \
    /var/codespace-attack /codespace-attack /run/codespace-attack /proc/sys/kernel/core_pattern /dev/codespace-attack
do if ( : >"$path" ) 2>/dev/null; then echo "wrote $path"; fi; done
echo done
"""


def test_the_workspace_tmp_and_home_can_be_written_and_nothing_else(cage: Cage) -> None:
    result = cage.sh(
        TRY_WRITING + 'echo kept >made; echo x >/tmp/codespace-x && echo y >"$HOME/y" && cat /tmp/codespace-x "$HOME/y"'
    )
    assert result.out == "done\nx\ny\n", result
    assert (cage.root / "made").read_text() == "kept\n"
    assert not any(Path(place, "codespace-attack").exists() for place in ("/etc", "/usr", "/var", "/opt", "/"))
    assert not Path("/tmp/codespace-x").exists()


def test_secrets_of_the_home_do_not_exist_inside(cage: Cage) -> None:
    names = (".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".netrc")
    paths = [str(cage.base / "home" / name) for name in names]
    script = 'for path; do cat "$path"; done; ls -A "$HOME"'
    outside = cage.plainly(["/bin/sh", "-c", script, "-", *paths])
    assert outside.out.count("canary-secret") == 4
    inside = cage.run(["/bin/sh", "-c", script, "-", *paths, "/root/.ssh", "/home"])
    assert "canary-secret" not in inside.out + inside.err
    assert inside.err.count("No such file") >= 4


def test_what_the_kernel_tells_of_the_host_is_not_told_inside(cage: Cage) -> None:
    names = "kcore kmsg keys key-users timer_list slabinfo vmallocinfo kpagecount kpageflags iomem"
    told = f'for name in {names}; do timeout 2 head -c 1 "/proc/$name" 2>/dev/null; done | wc -c'
    assert cage.sh(told).out.strip() == "0"


def test_the_memory_of_process_1_is_out_of_reach(cage: Cage) -> None:
    """Written to, it would not die with its parent, and be another program for whoever sweeps."""
    ways = ("/proc/1/mem", "/proc/1/task/1/mem", "/proc/1/root/proc/1/mem", "/proc/self/../1/mem", "/proc/self/mem")
    written = f'for way in {" ".join(ways)}; do (: 3<>"$way") 2>/dev/null && echo "$way"; umount "$way"; done'
    assert cage.sh(written).out == "/proc/self/mem\n"


def test_what_only_root_may_read_in_etc_is_masked_for_root_too(cage: Cage) -> None:
    script = (
        "for path in /etc/shadow /etc/shadow- /etc/gshadow /etc/ssh/sshd_config; do cat $path; done; cat /etc/passwd"
    )
    inside = cage.sh(script)
    assert "root:" in inside.out  # passwd is there
    assert all(line.count(":") == 6 for line in inside.out.splitlines())  # and no line of a shadow file
    if cage.uid == 0 and os.path.exists("/etc/shadow"):
        assert ":" in cage.plainly(["/bin/cat", "/etc/shadow"]).out


def test_nothing_in_etc_can_be_read_that_others_may_not_read(cage: Cage) -> None:
    script = "find /etc ! -type l ! -perm -o+r -exec sh -c 'for f; do if [ -r \"$f\" ]; then echo $f; fi; done' sh {} +"
    inside = cage.sh(script + "; echo done")
    assert inside.out == "done\n"
    if cage.uid == 0:
        assert "/etc/shadow" in cage.plainly(["/bin/sh", "-c", script]).out


@pytest.mark.parametrize(("groups", "masked"), [([GROUP], ["by-group", "room"]), ([], [])])
def test_a_secret_is_masked_for_whom_its_group_lets_in_and_costs_nobody_else_a_mount(
    groups: list[int], masked: list[str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to groups and act as other accounts")
    with caged(UNPRIVILEGED, bubblewraps()[0]) as theirs:
        etc = theirs.base / "etc"
        (etc / "room").mkdir(parents=True)
        for name, mode in (("by-group", 0o640), ("by-nobody", 0o600), ("public", 0o644), ("room", 0o710)):
            if name != "room":
                (etc / name).write_text("secret\n")
            (etc / name).chmod(mode)
            os.chown(etc / name, 0, GROUP)
        found = theirs.does(lambda: Etc(str(etc)).masks(), groups=groups)
        assert [*found.files, *found.directories] == [str(etc / name) for name in masked]


def test_every_secret_is_masked_where_a_filter_lets_nobody_ask_for_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").touch(0o600)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # what it says of EPERM, which such a filter answers
    assert Etc(str(tmp_path)).masks().files == (str(tmp_path / "secret"),)


def test_a_link_in_the_workspace_leads_to_nothing_outside(cage: Cage) -> None:
    secret = cage.base / "home" / ".netrc"
    for name, target in (("link", secret), ("up", "../home/.netrc"), ("folder", cage.base / "home")):
        os.symlink(target, cage.root / name)
    script = "cat link; cat up; cat folder/.netrc; echo owned >link; echo owned >folder/new"
    assert cage.plainly(["/bin/sh", "-c", "cat link up folder/.netrc"]).out.count("canary") == 3
    inside = cage.sh(script)
    assert "canary" not in inside.out
    assert secret.read_text() == "canary-secret\n"
    assert not (cage.base / "home" / "new").exists()


def test_no_hard_link_can_be_made_to_a_file_outside(cage: Cage) -> None:
    result = cage.sh(f"ln {cage.base}/home/.netrc here; ln /etc/hostname here; ln /usr/bin/env here; ls")
    assert result.out == ""
    assert cage.sh("echo a >a && ln a b && cat b").out == "a\n"


def test_dots_and_proc_lead_to_the_view_of_the_sandbox_only(cage: Cage) -> None:
    up = "../" * 20
    places = (up, "/proc/self/root/", "/proc/1/root/", "/proc/self/cwd/../../../../")
    script = "; ".join(f"cat {place}{cage.base}/home/.netrc" for place in places)
    assert "canary" not in cage.sh(script + f"; ls {up}").out
    assert "canary" in cage.plainly(["/bin/sh", "-c", f"cat {up}{cage.base}/home/.netrc"]).out


def test_no_descriptor_but_three_is_inherited(cage: Cage) -> None:
    held = os.open(cage.put("database"), os.O_RDWR)
    os.set_inheritable(held, True)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    try:
        result = cage.sh("ls /proc/$$/fd; for number in /proc/1/fd/*; do readlink $number; done")
    finally:
        os.close(held)
        listener.close()
    own, first = result.out.splitlines()[:3], result.out.splitlines()[3:]
    assert own == ["0", "1", "2"], result
    assert len([name for name in first if not name.startswith("anon_inode:")]) == 3, result  # bubblewrap's own eventfd


def test_what_is_hidden_by_its_place_cannot_be_moved_to_where_a_later_run_sees_it(cage: Cage) -> None:
    for path in ("config/secret.env", "vault/deep/inner/x", "d/e/y.pem", "kept/.aws/credentials"):
        cage.put(path, "canary\n")
    globs = ("config/secret.env", "/vault/deep/", "d/**/*.pem", "**/.aws/credentials")
    hidden = cage.having(hidden_paths=globs)
    moving = "for dir in config vault d/e d kept/.aws kept; do mv $dir m$(echo $dir | tr -d ./) 2>/dev/null; done"
    hidden.perl("rename($_, 'm' . tr/.\\///dr) for qw(config vault d/e d kept/.aws kept)")
    hidden.sh(moving)
    assert "canary" not in hidden.sh("cat $(find . -type f) 2>/dev/null").out
    assert (cage.root / "config" / "secret.env").read_text() == "canary\n"
    cage.sh(moving)  # the control, with nothing hidden
    assert "canary" in hidden.sh("cat $(find . -type f) 2>/dev/null").out


def test_a_directory_with_something_hidden_by_its_name_can_be_moved(cage: Cage) -> None:
    cage.put("a/.env", "canary\n")
    hidden = cage.having(hidden_paths=(".env", "**/*.pem"))
    assert hidden.sh("mv a b && ls -d b").out == "b\n"
    assert "canary" not in hidden.sh("cat b/.env").out


def test_what_is_hidden_or_a_socket_is_not_reached_through_a_directory_that_a_run_closed_to_listing() -> None:
    with caged(accounts()[-1], bubblewraps()[0]) as cage:  # root lists every directory
        cage.put("d/.env", "secret\n")
        hidden = cage.having(hidden_paths=(".env",))
        path = str(cage.root / "d" / "socket")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            os.chmod(path, 0o777)
            listening.listen()
            assert hidden.sh("chmod 311 d").code == 0
            try:
                run = hidden.sh("cat d/.env; ls d")
                to_it = "connect(S, sockaddr_un($ARGV[0]))"
                asked = hidden.perl(
                    f"use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0); print {to_it} ? 'in' : 'no'", path
                )
            finally:
                (cage.root / "d").chmod(0o755)
        assert run.out == ""
        assert asked.out == "no"


def test_a_root_that_a_run_closed_to_listing_takes_no_other_before_it_is_open_again() -> None:
    with caged(accounts()[-1], bubblewraps()[0]) as cage:
        cage.put(".env", "secret\n")
        hidden = cage.having(hidden_paths=(".env",))
        assert hidden.sh("chmod 311 .").code == 0
        try:
            with pytest.raises(Refusal, match="cannot be listed"):
                hidden.sh("cat .env")
        finally:
            cage.root.chmod(0o755)
        assert hidden.sh("echo again").out == "again\n"


@pytest.mark.parametrize(
    ("cwd", "named"), [(".", "root has the mode 0600"), ("locked", r"\(locked\) has the mode 0600")]
)
def test_a_directory_of_roots_that_no_command_can_enter_is_told_by_its_mode(cwd: str, named: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("others cannot look into it themselves, and are told that")
    with caged(0, bubblewraps()[0]) as cage:
        place = cage.folder("locked") if cwd == "locked" else cage.root
        place.chmod(0o600)
        with pytest.raises(Refusal, match=named) as caught:
            cage.sh("true", cwd=cwd)
        assert f"chmod u+rwx {place}" in caught.value.next_step
        place.chmod(0o755)
        assert cage.sh("echo again", cwd=cwd).out == "again\n"


def test_hidden_paths_cannot_be_read_listed_replaced_or_changed(cage: Cage) -> None:
    cage.put(".env", "canary\n")
    cage.put("config/secret.pem", "canary\n")
    cage.put("private/deep/key", "canary\n")
    cage.put("open/.env.example", "visible\n")
    script = """
    cat .env config/secret.pem private/deep/key; ls private; chmod 777 private .env; cat .env
    mv private other; mv .env other; rm -rf private .env; echo x >.env; cp .env copied; ln .env linked
    cat copied linked
    cat open/.env.example
    """
    assert "canary" in cage.sh(script).out  # with nothing hidden
    for name in ("other", "copied", "linked", ".env"):
        cage.plainly(["/bin/rm", "-rf", name])
    for name, text in ((".env", "canary\n"), ("config/secret.pem", "canary\n"), ("private/deep/key", "canary\n")):
        cage.put(name, text)
    hidden = cage.having(hidden_paths=(".env", "*.pem", "/private/"))
    result = hidden.sh(script)
    assert result.out.replace("visible\n", "") == ""
    assert (cage.root / ".env").read_text() == "canary\n"
    assert (cage.root / "private/deep/key").read_text() == "canary\n"


def test_a_socket_in_the_workspace_cannot_be_reached(cage: Cage) -> None:
    path = cage.root / "host.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        script = "use IO::Socket::UNIX; print IO::Socket::UNIX->new(Peer => 'host.sock') ? 'reached' : 'refused'"
        assert cage.plainly(["/usr/bin/perl", "-e", script]).out == "reached"
        assert cage.perl(script).out == "refused"


@pytest.mark.parametrize("git", ["read_only", "commit", "unprotected"])
@pytest.mark.parametrize("place", [".git", "deep/.git", ".git/modules/one", "tools/deep"])
def test_a_socket_where_nothing_can_be_changed_cannot_be_reached_either(cage: Cage, place: str, git: Any) -> None:
    for name in ("HEAD", "config", "hooks/pre-commit"):
        cage.put(f".git/{name}", "")
    path = cage.folder(place) / "host.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        script = (
            f"use IO::Socket::UNIX; print IO::Socket::UNIX->new(Peer => '{place}/host.sock') ? 'reached' : 'refused'"
        )
        assert cage.plainly(["/usr/bin/perl", "-e", script]).out == "reached"
        assert cage.having(git=git).run(["/usr/bin/perl", "-e", script], protected=("/tools/",)).out == "refused"


@pytest.mark.parametrize("git", ["read_only", "commit", "unprotected"])
def test_what_is_hidden_in_a_git_directory_is(cage: Cage, git: Any) -> None:
    for name in ("HEAD", "config", "hooks/pre-commit", "deploy.pem", "private/key"):
        cage.put(f".git/{name}", "canary\n")
    script = "cat .git/config .git/deploy.pem .git/private/key"
    assert cage.having(git=git).sh(script).out == "canary\n" * 3
    assert cage.having(git=git, hidden_paths=(".git/config", "*.pem", "**/private/")).sh(script).out == ""
    assert (cage.root / ".git/config").read_text() == "canary\n"


def test_a_private_socket_between_processes_inside_works(cage: Cage) -> None:
    script = """
    use IO::Socket::UNIX; my $l = IO::Socket::UNIX->new(Local => 'own.sock', Listen => 1) or die "listen $!";
    if (fork) { my $c = $l->accept or die "accept $!"; print <$c>; wait } else
    { my $s = IO::Socket::UNIX->new(Peer => 'own.sock') or die "connect $!"; print $s "through\\n" }
    """
    assert cage.perl(script).out == "through\n"


def test_a_readable_path_can_be_read_and_not_written(cage: Cage) -> None:
    tools = cage.base / "tools"
    tools.mkdir()
    (tools / "tool").write_text("of use\n")
    os.chown(tools, cage.uid, cage.uid)
    script = f"cat {tools}/tool; echo x >{tools}/new"
    assert cage.sh(script).out == ""
    assert cage.having(readable_paths=(str(tools),)).sh(script).out == "of use\n"
    assert not (tools / "new").exists()


def test_a_program_called_bwrap_or_sh_in_the_workspace_or_its_path_is_not_used(cage: Cage) -> None:
    for name in ("bwrap", "sh", "setsid", "env"):
        cage.put(f"bin/{name}", "#!/bin/sh\necho stolen >../stolen; echo stolen\n", mode=0o755)
    env = {"PATH": f"{cage.root}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{cage.root}/bin"}
    assert cage.run(["/bin/echo", "mine"], cwd="bin", env=env).out == "mine\n"
    assert not (cage.root / "stolen").exists()


@pytest.mark.parametrize("name", ["with space", "with\nnewline", "-dash", "quo'te\"", "uni✓"])
def test_a_root_of_any_name_works(cage: Cage, name: str) -> None:
    root = cage.base / name
    root.mkdir()
    os.chown(root, cage.uid, cage.uid)
    named = cage.having(root=str(root))
    named.put("sub dir/.git/config", "x\n")
    assert named.sh("echo here >made; echo x >'sub dir/.git/config'", cwd="sub dir").code != 0
    assert (root / "sub dir" / "made").read_text() == "here\n"


def test_a_root_that_is_the_kernels_own_is_refused(cage: Cage) -> None:
    for root in ("/proc/sys", "/sys/kernel", "/dev/shm"):
        if Path(root).is_dir():
            with pytest.raises(Refusal, match="kernel's own"):
                cage.having(root=root).sh("true")


def test_a_link_where_git_looks_fails_closed_and_exposes_nothing(cage: Cage) -> None:
    cage.put("sub/file")
    for target in (cage.base / "home", "/etc", "/run/dbus.sock"):
        link = cage.root / "sub" / ".git"
        cage.sh(f"ln -s {target} sub/.git")
        assert link.is_symlink()
        with pytest.raises(Refusal, match="symbolic link") as caught:
            cage.sh("cat sub/.git/.netrc")
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
        assert "sub/.git" in caught.value.message
        link.unlink()
    assert cage.sh("echo alive").out == "alive\n"


def test_a_name_swapped_for_a_link_while_the_sandbox_is_made_releases_nothing(cage: Cage) -> None:
    cage.put("sub/.git/config", "mine\n")
    real = cage.prepare

    def swapped(*arguments: object, **more: object) -> object:
        prepared = real(*arguments, **more)  # type: ignore[arg-type]
        os.rename(cage.root / "sub", cage.root / "moved")
        os.mkdir(cage.base / "home" / ".git")
        os.symlink(cage.base / "home", cage.root / "sub")
        return prepared

    object.__setattr__(cage, "prepare", swapped)
    with pytest.raises(Exception, match=r"mounts|namespaces"):
        cage.sh("echo ran >ran; ls -la sub/")
    assert not (cage.root / "ran").exists()


def led_astray(cage: Cage, point: str, target: str) -> Cage:
    """Return an attacker for whom `point` was a link to `target` at the moment when bubblewrap resolved it."""
    script = cage.base / "astray"
    script.write_text(
        "#!/usr/bin/perl\n"
        f"my ($point, $target) = ('{point}', '{target}');\n"
        "for (0 .. $#ARGV - 2) { $ARGV[$_ + 1] = $target if $ARGV[$_] =~ /bind$/ && $ARGV[$_ + 2] eq $point }\n"
        f"exec '{cage.bubblewrap}', @ARGV;\n"
    )
    script.chmod(0o755)
    return replace(cage, bubblewrap=str(script))


@pytest.mark.parametrize("name", ["sub", "..sub"])
@pytest.mark.parametrize("elsewhere", ["home", "/dev/shm"])
def test_a_name_that_was_a_link_for_a_moment_opens_no_other_directory_wherever_it_lies(
    cage: Cage, name: str, elsewhere: str
) -> None:
    cage.put(f"{name}/.git/config", "mine\n")
    target = tempfile.mkdtemp(dir=elsewhere if elsewhere.startswith("/") else cage.base / elsewhere)
    try:
        os.chown(target, cage.uid, cage.uid)
        os.mkdir(os.path.join(target, ".git"), 0o755)
        with pytest.raises(NotStarted, match="was replaced"):
            led_astray(cage, str(cage.root / name), target).sh(f"echo evil >{name}/evil")
        assert os.listdir(target) == [".git"]
    finally:
        shutil.rmtree(target)


def test_a_readable_path_that_has_become_a_link_opens_nothing_else(cage: Cage) -> None:
    tools = cage.base / "tools"
    tools.mkdir()
    reading = cage.having(readable_paths=(str(tools),))
    assert reading.sh(f"ls {tools} && echo there").out == "there\n"
    tools.rmdir()
    tools.symlink_to(cage.base / "home")
    with pytest.raises(NotStarted, match="was replaced"):
        reading.sh(f"cat {tools}/.netrc")


def test_what_lies_on_a_filesystem_of_its_own_is_protected_where_the_operator_lets_commands_in(
    mounted: Cage,
) -> None:
    assert mounted.sh("echo fine >sub/fine; cat sub/fine; echo evil >sub/deep/.git/config").out == "fine\n"
    assert (mounted.root / "sub/deep/.git/config").read_text() == "mine\n"


def test_a_repository_that_is_a_mount_of_its_own_is_masked_and_leaves_the_workspace_alive(mounted: Cage) -> None:
    place = str(mounted.folder(".git"))
    subprocess.run(["mount", "--bind", str(mounted.root / "sub/deep/.git"), place], check=True)
    try:
        assert mounted.having(allow_submounts=False).sh("cat .git/config; echo alive").out == "alive\n"
        assert mounted.sh("cat .git/config; echo evil >.git/config").out == "mine\n"
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def mounted(cage: Cage) -> Iterator[Cage]:
    """A workspace with another filesystem in it, into which commands may go."""
    place = str(cage.folder("sub"))
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=False).returncode != 0:
        pytest.skip("only root can mount a filesystem")
    try:
        os.chown(place, cage.uid, cage.uid)
        cage.put("sub/deep/.git/config", "mine\n")
        yield cage.having(allow_submounts=True)
    finally:
        subprocess.run(["umount", place], check=True)


def test_too_many_git_directories_are_refused_by_name_and_leave_the_workspace_alive(cage: Cage) -> None:
    planting = cage.sh("mkdir d && cd d && mkdir -p $(seq -f %g/.git 2000) && echo planted")
    assert planting.out == "planted\n"
    assert len(planting.planted) == 2000
    with pytest.raises(Refusal, match="git directories") as caught:
        cage.sh("true")
    assert str(limits.SANDBOX_BINDS) in caught.value.message
    assert "find . -mindepth 2 -name .git" in caught.value.next_step
    cage.plainly(["/bin/rm", "-rf", "d"])
    assert cage.sh("echo alive").out == "alive\n"


@pytest.mark.parametrize(("kind", "named"), [("git", "250 git directories"), ("fifo", "250 sockets, FIFOs or devices")])
def test_few_places_with_long_names_are_refused_by_what_they_are_before_no_program_can_be_told_of_them(
    cage: Cage, kind: str, named: str
) -> None:
    digging = """
        use POSIX; my $down = sub { my $n = "d" x 250; mkdir $n; chdir $n or die };
        $down->() for 1 .. 14;
        for my $at (0 .. 249) {
            if ("KIND" eq "fifo") { POSIX::mkfifo("f$at", 0600) or die } else { open F, ">", ".git" . "." x $at or die }
        }
    """
    assert cage.perl(digging.replace("KIND", kind)).code == 0
    with pytest.raises(Refusal, match=named) as caught:
        cage.sh("true")
    assert f"{limits.SANDBOX_BINDS_BYTES:,} bytes" in caught.value.message
    assert "FIFOs" in caught.value.next_step
    assert cage.plainly(["/bin/sh", "-c", "rm -rf d*"]).code == 0
    assert cage.sh("echo alive").out == "alive\n"


def test_ever_so_many_sockets_are_refused_by_what_they_are(cage: Cage) -> None:
    assert cage.perl('use POSIX; POSIX::mkfifo("f", 0600); link "f", "f$_" or die for 1 .. 999').code == 0
    with pytest.raises(Refusal, match=rf"At least {limits.SANDBOX_BINDS + 1} .* sockets, FIFOs or devices"):
        cage.sh("true")
    assert cage.plainly(["/bin/sh", "-c", "rm -f f*"]).code == 0
    assert cage.sh("echo alive").out == "alive\n"


def test_what_is_protected_below_two_thousand_directories_is_refused_at_once(cage: Cage) -> None:
    digging = 'for (1 .. 1800) { mkdir "d"; chdir "d" or die } for (0 .. 9) { open F, ">", ".git" . "." x $_ or die }'
    assert cage.perl(digging).code == 0
    begun = time.thread_time()
    with pytest.raises(Refusal, match="10 git directories"):
        cage.sh("true")
    assert time.thread_time() - begun < 5  # each of its two thousand paths was compared with all the others: 25 s
    assert cage.plainly(["/bin/rm", "-rf", "d"]).code == 0


@pytest.mark.parametrize("settings", [{}, {"git": "commit"}, {"hidden_paths": ("secret", "hidden/")}])
def test_what_is_too_deep_to_be_named_leaves_the_workspace_alive_and_is_protected(
    cage: Cage, settings: dict[str, object]
) -> None:
    chosen = cage.having(**settings)
    digging = """
        my $down = sub { my $n = "d" x $_[0]; mkdir $n; chdir $n or die };
        mkdir "top"; chdir "top"; $down->(250) for 1 .. 14; $down->(30) for 1 .. 8;
        for my $depth (1 .. 30) {
            for my $n (".git", ".git/hooks", "hidden") { mkdir $n }
            for my $n ("secret", ".git/config", "hidden/x") { open F, ">>", $n and syswrite F, "mine\n"; close F }
            system "/usr/bin/mkfifo", "fifo"; $down->(11);
        }
    """
    dug = cage.perl(digging)
    assert dug.code == 0, dug
    attack = """
        my ($wrote, $read, $b) = (0, 0);
        sub go { chdir $_[0] or return; opendir my $d, "." or return; my @n = readdir $d; closedir $d;
            if (open F, ">>", ".git/config" and syswrite F, "evil") { $wrote++ }
            for my $n ("secret", "hidden/x") { $read++ if open F, "<", $n and sysread F, $b, 1 }
            for my $n (@n) { if ($n =~ /^d+$/) { go($n); chdir ".." } } }
        go("top"); print "$wrote $read";
    """
    hides = "hidden_paths" in settings
    wrote, read = chosen.perl(attack).out.split()
    assert (wrote, read != "0") == ("0", not hides)
    assert cage.having(git="unprotected").perl(attack).out.split()[0] != "0"  # the control
    assert cage.plainly(["/bin/rm", "-rf", "top"]).code == 0


def test_a_module_of_the_workspace_is_never_imported_by_the_program(cage: Cage) -> None:
    for name in ("codespace", "json", "trio", "helper"):
        cage.put(f"{name}.py", "import os; os.mkdir('stolen')\n")
        cage.put(f"{name}/__init__.py", "import os; os.mkdir('stolen')\n")
    done = subprocess.run(
        [sys.executable, "-I", "-m", "helper.sandbox", "--help"], cwd=cage.root, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert not (cage.root / "stolen").exists()


def test_a_directory_that_cannot_be_looked_into_is_read_only(cage: Cage) -> None:
    cage.put("locked/.git/config", "mine\n")
    (cage.root / "locked").chmod(0o000)
    try:
        cage.sh("chmod 755 locked; echo x >locked/.git/config")
    finally:
        (cage.root / "locked").chmod(0o755)
    assert (cage.root / "locked/.git/config").read_text() == "mine\n"


def test_a_mount_below_the_root_is_masked_unless_allowed(cage: Cage) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount something below a root, and this run is not root's")
    point = cage.folder("mounted")
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "none", str(point)], check=True)
    try:
        (point / "file").write_text("seen\n")
        point.chmod(0o755)
        assert cage.sh("cat mounted/file").out == ""
        assert cage.having(allow_submounts=True).sh("cat mounted/file").out == "seen\n"
    finally:
        subprocess.run(["/usr/bin/umount", str(point)], check=True)


def test_a_mount_whose_filesystem_is_dead_leaves_the_workspace_alive(cage: Cage) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount something below a root, and this run is not root's")
    point = cage.folder("dead")
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    assert ctypes.CDLL(None).mount(b"none", os.fsencode(point), b"fuse", 0, options) == 0
    os.close(server)
    try:
        assert cage.sh("ls dead; echo alive").out == "alive\n"
    finally:
        subprocess.run(["/usr/bin/umount", "-l", str(point)], check=True)


@pytest.mark.parametrize("bubblewrap", bubblewraps())
def test_root_on_anothers_files_gets_a_clear_note_and_no_special_rights(bubblewrap: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("it is about a daemon that root runs, and this run is not root's")
    with caged(UNPRIVILEGED, bubblewrap) as theirs:
        theirs.put("file", "theirs\n")
        as_root = Cage(0, bubblewrap, theirs.base, theirs.workspace)
        result = as_root.sh("cat file; echo x >file")
        assert result.out == "theirs\n"
        assert "denied" in result.err
        prepared = as_root.prepare(["true"], env={})
        assert str(UNPRIVILEGED) in prepared.notes[0]
