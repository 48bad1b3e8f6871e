"""The sandbox as the supervisor and the command line use it: what is in force, and one run after another.

All methods block for milliseconds (the first probe for longer): call them in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from codespace import limits
from codespace.beneath import Root
from codespace.contract import Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.sandbox import limits as cgroups
from codespace.sandbox import orphans, plan, probe, report, seccomp, shortage
from codespace.sandbox.inventory import detours, git, gitaccount, gitconfig, planted, scan
from codespace.sandbox.inventory.planted import Planted, Sight
from codespace.sandbox.inventory.scan import Inventory
from codespace.sandbox.limits import Cage
from codespace.sandbox.plan import Plan
from codespace.sandbox.probe import Rung, Standing
from codespace.sandbox.spawn import Equipment, Launch
from codespace.sandbox.system import Etc

_BLIND = (
    "not every link could be followed in %s, where editors or agents look for what they run by themselves, so what "
    f"they lead to cannot be protected; make it smaller ({detours.BOUNDS}), and readable"
)

HOME = plan.HOME
"""What HOME is inside; the caller puts it into the command's environment."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One run that could be started now. It holds no descriptor; throwing it away costs nothing."""

    workspace: Workspace
    plan: Plan
    equipment: Equipment
    before: Sight
    protected: tuple[str, ...]
    memory: scan.Memory
    """Of what scans after a run have seen."""
    named: tuple[str, ...] = ()
    """Those of `protected` that git's configuration and links name."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the result of this run should say from the start."""
        return self.plan.notes

    def launch(self, cage: Cage | None = None, *, by_hand: bool = False) -> Launch:
        """Return its descriptors and command line.

        Args:
            cage: The run's cgroup, where the caller keeps one.
            by_hand: The caller lays the covers that can be left to it.
        Raises: Refusal SANDBOX_UNAVAILABLE.
        """
        try:
            return Launch(self.equipment, self.plan, cage, by_hand=by_hand)
        except OSError as error:
            raise unavailable(f"it could not be prepared ({error.strerror or error})", retry=True) from error
        except seccomp.Missing as error:
            raise unavailable(f"it could not be prepared ({error})") from error

    def planted(self) -> list[Planted]:
        """Look at the root again and return what runs by itself on the host and was not there before the run.

        Raises: OSError, Refusal where the tree cannot be looked at.
        """
        with Root.open(self.workspace.root, allow_submounts=self.workspace.allow_submounts) as root:
            places = self.named
            if self.workspace.git != "unprotected":  # a link that it made leads git elsewhere now
                places = (*places, *_places(self.workspace, root), *_places_of(root, self.before.inventory))
            named = {*self.named}
            own = [glob for glob in self.protected if glob not in named]
            ways = detours.look(root, own, places)
            protected = _with(_with(self.protected, places), ways.globs)
            memory = self.memory if protected == self.protected else None
            found = scan.scan(root, hidden=(), protected=protected, memory=memory)
            after = planted.see(
                root,
                found,
                ways.links,
                self.plan.writable,
                commits=_commits(self.workspace),
                outside=_outside(self.workspace),
            )
            return planted.compare(root, self.before, after, self.workspace.hidden_paths, protected)


def _commits(workspace: Workspace) -> bool:
    return workspace.git != "read_only"


def _outside(workspace: Workspace) -> tuple[str, ...]:
    common = git.common_directory(workspace.root) if workspace.git == "commit" else None
    return () if common is None else (common,)


def _places(workspace: Workspace, root: Root) -> tuple[str, ...]:
    return gitconfig.places(root, git.common_directory(workspace.root), gitaccount.recall())


def _places_of(root: Root, inventory: Inventory) -> tuple[str, ...]:
    below = [found for found in inventory.git if (found.path, found.kind) != (".git", "directory")]
    return gitconfig.places_of(root, below, gitaccount.recall()) if below else ()


def _with(protected: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Return globs of protected paths with more of them, each once."""
    return tuple(dict.fromkeys((*protected, *more))) if more else tuple(protected)


class Sandbox:
    """Knows what is in force, and prepares runs."""

    def __init__(self, bwrap_path: str | None = None) -> None:
        self._bwrap_path = bwrap_path
        self._etc = Etc()
        self._lock = threading.Lock()
        self._known: Standing | None = None
        self.by_hand = True
        """Whether covers are left to who starts bubblewrap; not any more once this machine was seen to forbid it."""
        self._unsure: tuple[float, str] | None = None
        self._memories: dict[tuple[str, bool, tuple[str, ...], tuple[str, ...]], scan.Memory] = {}

    def standing(self) -> Standing:
        """Return what is in force; the first call probes, and what it concludes stands until the daemon ends.

        Raises: Refusal SANDBOX_UNAVAILABLE where nothing could be concluded; nothing lower is in force then.
        """
        if (known := self._known) is not None:  # nobody waits for a probe to be told what is known
            return known
        with self._lock:
            if self._known is not None:
                return self._known
            if self._unsure is not None and time.monotonic() < self._unsure[0]:
                raise unavailable(self._unsure[1], retry=True)
            try:
                self._known = probe.look(self._bwrap_path, self._etc)
            except probe.Unsure as problem:
                self._unsure = (time.monotonic() + limits.SANDBOX_UNSURE_SECONDS, str(problem))
                raise unavailable(str(problem), retry=True) from problem
            return self._known

    @property
    def known(self) -> Standing | None:
        """What was concluded, None before; where there is something, `standing`, `choose` and `rung` never block."""
        return self._known

    def rung(self, workspace: Workspace) -> Rung:
        """Return what a command of this workspace would be locked into, whatever the workspace demands.

        Raises: Refusal SANDBOX_UNAVAILABLE where nothing could be concluded.
        """
        return report.rung(self.standing(), workspace)

    def choose(self, workspace: Workspace) -> Rung:
        """Return what a command of this workspace would be locked into now.

        Raises: Refusal SANDBOX_UNAVAILABLE where the workspace demands more than is in force.
        """
        return choose(self.standing(), workspace)

    def prepare(
        self,
        workspace: Workspace,
        *,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        protected: Sequence[str],
        tty: bool = False,
    ) -> Prepared:
        """Look at the root and return a run of `command`; `choose` has said `linux-sandbox`.

        Args:
            cwd: Relative to the root, cleaned.
            env: The command's whole environment; HOME is `HOME`.
            protected: Globs of protected paths in force.
            tty: Descriptors 0 to 2 will be a terminal, which nobody outside has as its controlling one.
        Raises: Refusal SANDBOX_UNAVAILABLE; nothing was started.
        """
        equipment = self.standing().equipment
        if equipment is None:
            raise unavailable("; ".join(self.standing().causes))
        try:
            before, found, made = self._plan(workspace, protected, command=command, cwd=cwd, env=env, tty=tty)
        except Refusal as refused:
            shortage.advise(refused)
            raise
        except OSError as error:
            raise unavailable(f"the workspace cannot be looked at ({error.strerror or error})", retry=True) from error
        named = tuple({*found}.difference(protected))
        memory = self._memory(workspace, (), found)
        return Prepared(workspace, made, equipment, before, tuple(found), memory, named)

    def _plan(self, workspace: Workspace, protected: Sequence[str], **asked: Any) -> tuple[Sight, Sequence[str], Plan]:
        """Return what is there, the globs in force and the plan; `asked` is the command. Raises: OSError, Refusal."""
        with Root.open(workspace.root, allow_submounts=workspace.allow_submounts) as root:
            places = () if workspace.git == "unprotected" else _places(workspace, root)
            ways = detours.look(root, [glob for glob in protected if glob not in places], places)
            if ways.blind:
                raise unavailable(_BLIND % display(ways.blind[0], limit=200))
            protected = _with(_with(protected, places), ways.globs)
            found = self._look(root, workspace, protected)
            named = () if workspace.git == "unprotected" else _places_of(root, found)
            if (more := _with(protected, named)) != protected:
                protected = more  # rare, and the second look is quick from its second time on
                found = self._look(root, workspace, protected)
            if ways.lost:  # as with a link under a protected name itself
                found = replace(found, links=tuple(sorted({*found.links, *ways.lost})))
            before = planted.see(root, found, ways.links, commits=_commits(workspace), outside=_outside(workspace))
            asked |= {"etc": self._etc.masks(), "submodules": before.submodules, "links": before.links}
            return before, protected, plan.make(workspace, root, found, **asked)

    def _look(self, root: Root, workspace: Workspace, protected: Sequence[str]) -> scan.Inventory:
        memory = self._memory(workspace, workspace.hidden_paths, protected)
        return scan.scan(root, hidden=workspace.hidden_paths, protected=protected, memory=memory)

    def _memory(self, workspace: Workspace, hidden: Sequence[str], protected: Sequence[str]) -> scan.Memory:
        """Return what earlier scans have seen; there is one for each workspace before a run, and one after."""
        key = (workspace.root, workspace.allow_submounts, tuple(hidden), tuple(protected))
        with self._lock:
            memory = self._memories.pop(key, None) or scan.Memory()
            self._memories[key] = memory  # at the end: those that were used last stay
            while len(self._memories) > limits.SANDBOX_MEMORIES:
                del self._memories[next(iter(self._memories))]
            return memory

    def facts(self, workspace: Workspace) -> dict[str, Any]:
        """Return what workspace_info says of commands here, from the probe. Raises: Refusal SANDBOX_UNAVAILABLE."""
        return report.facts(self.standing(), workspace)

    def sweep(self) -> int:
        """Remove what runs of killed daemons left; returns how many things."""
        return orphans.sweep() + cgroups.sweep()


def choose(standing: Standing, workspace: Workspace) -> Rung:
    """Return the rung for a workspace.

    Raises: Refusal SANDBOX_UNAVAILABLE; it names what is missing, and the remedy.
    """
    rung = report.rung(standing, workspace)
    missing = "; ".join(standing.causes)
    if workspace.network == "enabled" and rung != "linux-sandbox":
        raise unavailable(f"network `enabled` needs it ({missing})")
    if workspace.sandbox == "required" and rung != "linux-sandbox":
        raise unavailable(f"the workspace demands it ({missing})")
    return rung


def unavailable(problem: str, *, retry: bool = False) -> Refusal:
    """Return the refusal for a sandbox that is not to be had; nothing was started."""
    step = "Call again in a few seconds; if it repeats, ask the operator to run `codespace doctor`." if retry else None
    return Refusal(
        "SANDBOX_UNAVAILABLE", f"There is no sandbox for this command: {problem}. Nothing was started.", next_step=step
    )


__all__ = ["HOME", "Prepared", "Sandbox", "choose", "unavailable"]
