"""A command in the sandbox: bubblewrap is started by a monitor like any other program, and its gate opened here.

The monitor owns bubblewrap, and through it everything inside: whatever ends the monitor's lifeline ends
the sandbox. Until `open` has returned, no command exists.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import structlog
import trio

from codespace import limits, watches
from codespace.contract import SpawnRequest, Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.runner import environment, program, quota
from codespace.runner.monitor import Monitor
from codespace.runner.protected import protected_paths
from codespace.sandbox.box import HOME, Prepared, Sandbox, unavailable
from codespace.sandbox.proxyenv import proxy_environment
from codespace.sandbox.spawn import Launch, NotStarted

log = structlog.get_logger("codespace.commands")

LAYERS: Final = 2
"""Generations of the tree that are bubblewrap's own: itself, and process 1 inside."""
Door = Callable[[int], Awaitable[None]]
"""Called with the pid of process 1 while the gate is shut: a proxy makes its listener there and opens its door."""
Looking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs what looks at a root in a thread, which it may leave to itself where the root does not answer."""


_FORBIDDEN: Final = (
    *(errno.EPERM, errno.EACCES),  # a filter of system calls, AppArmor
    *(errno.EINVAL, errno.ENOSYS, errno.ENOTTY, errno.EOPNOTSUPP),  # a kernel, or what plays one, that cannot
)
"""What entering a sandbox or mounting there is refused with where this machine does not have it, now or tomorrow."""


class Uncovered(Exception):
    """The monitor did not lay the covers, for the reason of an errno; bubblewrap can be asked to."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.is_lasting = number in _FORBIDDEN
        """Whether the next run need not try: what else there is (no memory, no process, a killed fork) passes, and
        a command that can bring it about must not decide for those that follow."""


class Boxed:
    """One sandboxed command, from its preparation to its end."""

    def __init__(self, prepared: Prepared, held: quota.Held, launch: Launch) -> None:
        self.held = held
        self.notes = prepared.notes
        self.read_only = prepared.plan.read_only
        self._prepared = prepared
        self._launch = launch
        self._guard = threading.Lock()
        self._is_looking = self._is_closed = False

    @staticmethod
    def look(sandbox: Sandbox, workspace: Workspace, request: SpawnRequest) -> Prepared:
        """Look at the root; nothing is made. Blocks, for ever where a filesystem hangs: for a thread that may be left.

        Raises: Refusal SANDBOX_UNAVAILABLE.
        """
        return sandbox.prepare(
            workspace,
            command=request.argv,
            cwd=request.cwd,
            env=_env(workspace, request),
            protected=protected_paths(workspace),
            tty=request.tty,
        )

    @classmethod
    def make(cls, prepared: Prepared, by_hand: bool) -> Boxed:
        """Open what the start needs. Blocks for a moment, and looks at nothing of the root: for a thread.

        Args:
            by_hand: The monitor lays the covers that can be left to it.
        Raises: Refusal SANDBOX_UNAVAILABLE; nothing is left then.
        """
        try:
            held = quota.hold(prepared.equipment.mechanisms, prepared.workspace)
        except OSError as error:
            raise unavailable(f"its limits could not be put in force ({error.strerror})", retry=True) from error
        try:
            return cls(prepared, held, prepared.launch(held.cage, by_hand=by_hand))
        except BaseException:
            held.cage.close()
            raise

    def order(self, umask: int) -> dict[str, Any]:
        """Return what the monitor is told to start."""
        return {
            "program": self._launch.argv[0],
            "argv": self._launch.argv,
            "env": self._launch.env,
            "umask": umask,
            "terminal": "lent" if self._prepared.plan.tty else "none",
            # Before it is bubblewrap: moving processes that are there would cost 10 ms.
            "cgroups": self.held.cage.members,
            "rlimits": self.held.rlimits,
            "inherited": len(self._launch.inherited),
            "layers": LAYERS,
            "covers": None if self._launch.covers is None else asdict(self._launch.covers),
        }

    def descriptors(self) -> list[int]:
        """Return what bubblewrap inherits, as its 3, 4 and so on."""
        return [self._launch.inherited[number] for number in sorted(self._launch.inherited)]

    async def open(
        self,
        monitor: Monitor,
        bubblewrap: int,
        looking: Looking,
        stderr: int | None = None,
        door: Door | None = None,
        again: Callable[[], Prepared] | None = None,
    ) -> None:
        """See the sandbox set up, put it under its limits, and release the command.

        Args:
            monitor: Whose child bubblewrap is.
            bubblewrap: Its pid.
            looking: For the last look, which a filesystem can hold up for ever.
            stderr: Where its complaint can be read, without waiting; what is read is gone.
            door: Opens the way out of a networked run.
            again: Looks at the root as before, where other commands run in it.
        Raises: Uncovered; Refusal SANDBOX_UNAVAILABLE, PROCESS_SPAWN_FAILED; the command was not released then, and
            the caller ends bubblewrap.
        Cancel: as an error.
        """
        self._launch.let_go()
        try:
            with trio.fail_after(limits.SANDBOX_START_SECONDS):
                await _walk(self._launch.started(bubblewrap))
                await _walk(self._launch.ready())
                await self._cover(monitor)
                await looking(partial(self._seal_and_look, again))
                if door is not None:
                    assert self._launch.pid is not None
                    await door(self._launch.pid)
                self._have_watched(monitor)
                self._launch.release()
        except trio.TooSlowError:
            raise unavailable(f"it took over {limits.SANDBOX_START_SECONDS:g} s to set up", retry=True) from None
        except NotStarted as problem:
            said = complaint(stderr)
            raise unavailable(
                f"it could not be set up ({problem.stage}: {problem.cause}{'; ' if said else ''}{said})", retry=True
            ) from problem

    async def _cover(self, monitor: Monitor) -> None:
        if self._launch.covers is not None:
            try:
                refused, masking = await monitor.cover()
            except EOFError:
                raise NotStarted("mounts", "the sandbox ended while it was set up") from None
            if refused and masking:  # never left to bubblewrap: commands of the same root may bring it about
                raise NotStarted("mounts", f"something hidden was replaced meanwhile ({os.strerror(refused)})")
            if refused:
                raise Uncovered(refused)

    def _have_watched(self, monitor: Monitor) -> None:
        assert self._launch.mounts is not None
        try:
            monitor.watch(self._launch.mounts)
        except OSError as error:
            raise NotStarted("mounts", f"nobody can watch them ({error.strerror})") from error

    def _seal_and_look(self, again: Callable[[], Prepared] | None) -> None:
        with self._guard:
            if self._is_closed:
                return  # nobody waits for it any more
            self._is_looking = True
        try:
            # A name that was moved to a decoy while the masks were laid, and moved back, is seen here or by the seal.
            if again is not None and again().plan.mounts != self._prepared.plan.mounts:
                raise NotStarted("mounts", "what is hidden or protected was replaced meanwhile")
            self._launch.seal()
            if self._launch.missing_program():
                raise self._not_inside()
        finally:
            with self._guard:
                self._is_looking = False
                if self._is_closed:
                    self._launch.close()

    def bare(self) -> tuple[str, ...]:
        """Return the places that are protected or hidden no more, safe to show. Blocks for a moment: for a thread."""
        try:
            return tuple(display(path, limit=200) for path in self._launch.bare())
        except OSError:
            return ("what cannot be looked at any more",)

    def tried_network(self) -> bool:
        """Return whether anything in it has tried to reach what it has no way to; also behind `close`."""
        return self._launch.tried_network()

    def exit_code(self, told: int) -> int:
        """Return how the command ended, negative for a signal, where bubblewrap ended with `told`."""
        return self._launch.exit_code(told)

    def planted(self) -> tuple[tuple[str, ...], list[str]]:
        """Look at the root after the run; return what it planted, and what to say of it. Blocks: for a thread."""
        try:
            found = self._prepared.planted()
        except (OSError, Refusal) as problem:
            why = problem.message if isinstance(problem, Refusal) else f"{problem.strerror or problem}."
            # A refusal ends with what it left undone, which here is nothing of the call's.
            return unseen(f"{why.partition(' Nothing was ')[0].removesuffix('.')}.")
        except Exception:  # the command chose what was looked at; its end is told, and other commands go on
            log.exception("what a run left could not be looked at")
            return unseen("the look at it ended by a fault of CodeSpace.")
        if not found:
            return (), []
        named = tuple(display(one.path, limit=200) for one in found[: limits.SANDBOX_SHOWN])
        more = f" and {len(found) - limits.SANDBOX_SHOWN} more" if len(found) > limits.SANDBOX_SHOWN else ""
        loud = " Some lie where a program of the host's meets them next." if any(one.loud for one in found) else ""
        made = "what git, editors or agents on the host run, or go by, by themselves"
        if any(one.is_closed for one in found):
            made = f"{made}, or closed directories, which may hold such"
        return named, [f"This run made {made}: {', '.join(named)}{more}.{loud}"]

    def close(self) -> None:
        """Let go of all descriptors; a gate that is not open stays shut. The cgroup stays with `held`.

        A last look that a hung filesystem still holds up lets go of them at its end.
        """
        with self._guard:
            self._is_closed = True
            if not self._is_looking:
                self._launch.close()

    def _not_inside(self) -> Refusal:
        name = self._prepared.plan.command[0]
        if self._launch.has_inert_file():
            return program.failed(name, f"{program.INERT}.", program.INERT_HINT)
        if (target := self._launch.target()) is not None:
            path, is_directory = target
            if is_directory:
                return program.failed(name, f"{program.DIRECTORY}.", None)
            found = self._prepared.before.inventory  # inside there is nothing under the names of those
            place = posixpath.relpath(path, self._prepared.plan.root)
            if place in found.sockets and place not in found.hidden_files:
                return program.failed(name, f"{program.SPECIAL}.", program.SPECIAL_HINT)
            if self._is_own(posixpath.join(self._prepared.plan.cwd, name)) and not self._is_own(path):
                return program.failed(
                    name, f"it leads to {display(path, limit=200)}, which is not there inside.", program.LED_OUT_HINT
                )
        # Only of programs: whether any other file is there is nobody's business inside.
        path = f"{self._prepared.plan.env.get('PATH', '')}:{os.environ.get('PATH', '')}"
        outside = (os.path.isabs(name) or "/" not in name) and shutil.which(name, path=path) is not None
        if not outside and (hint := program.syntax_hint(name)) is not None:
            return program.failed(name, "there is no such program inside.", hint)
        if "/" in name and self._is_own(posixpath.join(self._prepared.plan.cwd, name)):
            return program.failed(name, "there is no such file in the workspace.", program.ABSENT_HINT)
        why = "it is on this machine but not visible in the sandbox" if outside else "there is no such program inside"
        return program.failed(name, f"{why}.", program.UNSEEN_HINT)

    def _is_own(self, path: str) -> bool:
        """Return whether an absolute path is below the root."""
        return posixpath.normpath(path).startswith(f"{self._prepared.plan.root}/")


def _env(workspace: Workspace, request: SpawnRequest) -> dict[str, str]:
    """Return the command's environment; the way out is laid over all, for there is no other."""
    env = environment.build(workspace.env, request.env, HOME, terminal=request.tty)
    return env | proxy_environment() if workspace.network == "enabled" else env


def unseen(why: str) -> tuple[tuple[str, ...], list[str]]:
    """Return what `Boxed.planted` does of a run that was not looked at."""
    return (), [f"Whether the run left git directories or protected files is not known: {why}"]


def complaint(descriptor: int | None) -> str:
    """Return what a bubblewrap that failed has written, safe to show."""
    if descriptor is None:
        return ""
    try:
        written = os.read(descriptor, limits.SANDBOX_COMPLAINT_BYTES)
    except OSError:
        return ""
    return display(written.decode(errors="replace").strip(), limit=400)


async def _walk(steps: Iterator[int]) -> None:
    for descriptor in steps:
        await watches.wait_readable(descriptor)
