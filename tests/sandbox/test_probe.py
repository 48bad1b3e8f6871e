"""The probe: what is really enforced, who only says so, and what is concluded from nothing (SANDBOX 5: 19, 37, 44)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import box, causes, probe, report, seccomp
from codespace.sandbox.probe import Standing

from .cage import ETC, Cage

WORKSPACE = Workspace(id="w", root="/srv/project", profile="workspace-write")


def program(folder: Path, text: str) -> str:
    path = folder / "bwrap"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


VERSION = 'case "$1" in --version) echo bubblewrap 9.9.9; exit 0;; esac\n'
ANSWERS = "; ".join(f"echo '{name}={value}'" for name, value in probe._EXPECTED.items())


def test_a_real_bubblewrap_isolates_by_its_witnesses(cage: Cage) -> None:
    standing = cage.does(lambda: probe.look(cage.bubblewrap, ETC))
    assert standing.rung == "linux-sandbox"
    assert standing.causes == ()
    facts = report.facts(standing, WORKSPACE)
    assert facts["command_sandbox"] == "linux-sandbox"
    assert facts["network_enforcement"] == "enforced"
    assert facts["exec_available"] is True


SAYS_NOTHING = "it took more than"


@pytest.mark.parametrize(
    ("fake", "told"),
    [
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', SAYS_NOTHING),
        (
            'echo "{\\"child-pid\\": $$}" >&4; while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
            "named a process that is not its own",
        ),
        (
            f'echo "{{\\"child-pid\\": $$}}" >&4; echo ready >&5; read -r g <&5; {ANSWERS}',
            "named a process that is not its own",
        ),
    ],
    ids=["runs-the-command", "names-itself", "says-what-is-wanted"],
)
def test_a_program_that_only_says_that_it_isolates_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: str, told: str
) -> None:
    if told == SAYS_NOTHING:  # however long one waits
        monkeypatch.setattr("codespace.limits.SANDBOX_START_SECONDS", 2.0)
    with pytest.raises(probe.Unsure, match=told):
        probe.look(program(tmp_path, f"#!/bin/sh\n{VERSION}{fake}\n"), ETC)


def test_a_program_that_exits_0_is_a_lasting_cause_with_a_remedy(tmp_path: Path) -> None:
    chosen = program(tmp_path, f"#!/bin/sh\n{VERSION}exit 0\n")
    standing = probe.look(chosen, ETC)
    assert standing.rung != "linux-sandbox"
    assert standing.causes[0].startswith(f"{chosen} does not isolate")
    assert "bwrap_path" in standing.causes[0]
    assert standing.equipment is None


def test_a_hanging_probe_concludes_nothing_and_never_steps_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespace.limits.SANDBOX_START_SECONDS", 0.3)
    sandbox = box.Sandbox(program(tmp_path, f"#!/bin/sh\n{VERSION}exec sleep 60\n"))
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            sandbox.choose(WORKSPACE)
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
    assert "Call again" in str(caught.value.next_step)


def test_an_unknown_failure_is_never_taken_for_a_lasting_cause(tmp_path: Path) -> None:
    chosen = program(tmp_path, f"#!/bin/sh\n{VERSION}echo 'bwrap: Resource temporarily unavailable' >&2; exit 1\n")
    with pytest.raises(probe.Unsure, match="temporarily"):
        probe.look(chosen, ETC)


def test_a_bubblewrap_that_does_not_say_its_version_in_time_concludes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespace.limits.SANDBOX_PROBE_SECONDS", 0.3)
    with pytest.raises(probe.Unsure, match="did not say its version"):
        probe.look(program(tmp_path, "#!/bin/sh\nexec sleep 60\n"), ETC)


def test_a_bubblewrap_that_is_killed_before_it_says_its_version_concludes_nothing(tmp_path: Path) -> None:
    with pytest.raises(probe.Unsure, match="killed by signal 9"):
        probe.look(program(tmp_path, "#!/bin/sh\nkill -9 $$\n"), ETC)


def test_witnesses_that_are_short_of_something_conclude_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_WITNESSES", f"ulimit -n 3\n{probe._WITNESSES}")
    with pytest.raises(probe.Unsure, match=r"could not do .*root, home, tmp"):
        probe.look(None, ETC)
    monkeypatch.setattr(probe, "_WITNESSES", "exit 2")
    with pytest.raises(probe.Unsure, match="could not do"):
        probe.look(None, ETC)


def test_a_witness_that_could_do_what_it_must_not_is_a_lasting_cause_whatever_else_was_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "_WITNESSES", f"ulimit -n 3\n{probe._WITNESSES}say outside yes\n")
    standing = probe.look(None, ETC)
    assert standing.rung != "linux-sandbox"
    assert "does not isolate" in standing.causes[0]


NO_PROCESS = """
import os, resource, sys
import pyseccomp
from codespace.sandbox import binaries, seccomp
del sys.modules["pyseccomp"]
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(61234, 61234, 61234)
    os.setresuid(61234, 61234, 61234)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    seccomp.program()
except seccomp.Missing as missing:
    print("missing", missing)
except binaries.Unanswered as problem:
    print("unanswered", problem)
"""


def test_a_filter_library_that_cannot_be_looked_for_without_a_process_is_not_called_missing() -> None:
    done = subprocess.run([sys.executable, "-c", NO_PROCESS], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("unanswered no program could be started"), done.stdout + done.stderr


SHORT = """
import os, resource
from codespace.sandbox import probe, seccomp
from codespace.sandbox.system import Etc
assert probe.look(None, Etc()).rung == "linux-sandbox"
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for more in range(40):
    before = os.listdir("/proc/self/fd")
    seccomp.program.cache_clear()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) - 1 + more, most))
    try:
        concluded = probe.look(None, Etc()).rung
    except probe.Unsure:
        concluded = "nothing"
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    assert os.listdir("/proc/self/fd") == before
    print(more, concluded)
"""


def test_a_probe_that_is_short_of_descriptors_concludes_nothing_and_keeps_none() -> None:
    done = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    concluded = [line.split()[1] for line in done.stdout.splitlines()]
    assert concluded[0] == "nothing"
    assert set(concluded) <= {"nothing", "linux-sandbox"}, done.stdout


def test_a_program_that_is_missing_is_a_lasting_cause(tmp_path: Path) -> None:
    standing = probe.look(str(tmp_path / "none"), ETC)
    assert standing.rung != "linux-sandbox"
    assert str(tmp_path / "none") in standing.causes[0]


def test_a_missing_filter_library_is_a_lasting_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> bytes:
        raise seccomp.Missing("libseccomp cannot be loaded; install it")

    monkeypatch.setattr("codespace.sandbox.seccomp.program", missing)
    assert "install it" in probe.look(None, ETC).causes[0]


NONE = Standing("none", None, ("user namespaces are switched off; as root: sysctl",))
LANDLOCK = replace(NONE, rung="landlock", landlock=7)


def test_without_a_sandbox_only_a_restricted_and_optional_workspace_runs_and_it_is_said() -> None:
    assert box.choose(NONE, WORKSPACE) == "none"
    for demanding in (replace(WORKSPACE, network="enabled"), replace(WORKSPACE, sandbox="required")):
        with pytest.raises(Refusal, match="sysctl") as caught:
            box.choose(NONE, demanding)
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
        assert report.facts(NONE, demanding)["exec_available"] is False
    facts = report.facts(NONE, WORKSPACE)
    assert facts["network_enforcement"] == "none"
    assert facts["command_sandbox"] == "none"
    assert "sysctl" in str(facts["reasons"])
    assert "all rights" in str(facts["caveats"])


def test_landlock_is_used_only_where_the_operator_allows_it_and_never_for_a_network() -> None:
    assert box.choose(LANDLOCK, WORKSPACE) == "none"
    degraded = replace(WORKSPACE, allow_degraded=True)
    assert box.choose(LANDLOCK, degraded) == "landlock"
    assert report.facts(LANDLOCK, degraded)["network_enforcement"] == "none"
    for demanding in (replace(degraded, network="enabled"), replace(degraded, sandbox="required")):
        with pytest.raises(Refusal):
            box.choose(LANDLOCK, demanding)


DENIED = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user",
    "bwrap: No permissions to creating new namespace, likely because the kernel does not allow non-privileged user",
)
"""What Debian's bubblewrap says, and the wheel's."""


@pytest.mark.parametrize("denied", DENIED, ids=["debian", "wheel"])
def test_known_causes_name_their_remedy_and_others_none(denied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"/proc/sys/user/max_user_namespaces": 0}
    monkeypatch.setattr(causes, "_number", settings.get)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "max_user_namespaces=15000" in str(causes.explain("/usr/bin/bwrap", denied))
    settings = {causes._DEBIAN: 0}
    monkeypatch.setattr(causes, "_number", settings.get)
    assert "unprivileged_userns_clone=1" in str(causes.explain("/usr/bin/bwrap", denied))
    settings.update({causes._DEBIAN: 1, causes._APPARMOR: 1})
    told = str(causes.explain("/usr/bin/bwrap", denied))
    assert "apparmor_parser" in told
    assert "/usr/bin/bwrap" in told
    settings.clear()
    monkeypatch.setattr(causes, "_container", lambda: "a Docker container")
    assert "systempaths=unconfined" in str(
        causes.explain("/usr/bin/bwrap", "bwrap: Can't mount proc: Operation not permitted")
    )
    assert causes.explain("/usr/bin/bwrap", "bwrap: Can't open: Too many open files") is None
    assert causes.explain("/usr/bin/bwrap", "") is None
    refused = str(causes.explain("/usr/bin/bwrap", denied))
    assert "Docker" in refused
    monkeypatch.setattr(causes, "_container", lambda: None)
    assert "ask who keeps it" in str(causes.explain("/usr/bin/bwrap", denied))
    unsupported = "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces."
    assert "CONFIG_USER_NS" in str(causes.explain("/usr/bin/bwrap", unsupported))
    filtered = "bwrap: Creating new namespace failed: Function not implemented"
    assert "knows no namespaces" in str(causes.explain("/usr/bin/bwrap", filtered))
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # refused to root is refused for good too
    assert "ask who keeps it" in str(causes.explain("/usr/bin/bwrap", denied))


PASSING = (
    "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
    "bwrap: Creating new namespace failed: Resource temporarily unavailable",
    "bwrap: Can't mount tmpfs on /newroot: No space left on device",
    "bwrap: Creating new namespace failed: Cannot allocate memory",
)


@pytest.mark.parametrize("said", PASSING)
def test_what_may_be_given_back_is_no_lasting_cause_in_a_container_or_behind_apparmor(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {causes._DEBIAN: 0, causes._APPARMOR: 1}
    monkeypatch.setattr(causes, "_number", settings.get)
    monkeypatch.setattr(causes, "_container", lambda: "a Docker container")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert causes.explain("/usr/bin/bwrap", said) is None
    for kind in ("user", "net", "cgroup"):
        monkeypatch.setattr(causes, "_number", {f"/proc/sys/user/max_{kind}_namespaces": 0}.get)
        told = str(causes.explain("/usr/bin/bwrap", said))
        assert told.startswith(f"{kind} namespaces are switched off")
        assert f"sysctl -w user.max_{kind}_namespaces=" in told


_CHROOT = r"""
mount --make-rprivate /
for place in /*; do
    if [ -L "$place" ]; then cp -P "$place" "$1$place"
    elif [ -d "$place" ]; then mkdir "$1$place" && mount --rbind "$place" "$1$place"
    fi
done
exec chroot "$@"
"""
"""Make a root of the machine's own directories in $1 and run the rest there."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can chroot")
def test_a_chroot_is_a_lasting_cause_of_its_own(tmp_path: Path) -> None:
    look = "from codespace.sandbox import probe, system; print(probe.look(None, system.Etc()))"
    told = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", _CHROOT, "sh", str(tmp_path), sys.executable, "-c", look],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "within a chroot" in told.stdout, told.stderr
    assert told.stdout.count("/usr/bin/bwrap") <= 1, "the same program under two names was tried twice"
