"""From a request to a running process: program, environment, home, pipes, and a monitor that starts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
import trio

from codespace import limits
from codespace.contract import SpawnRequest, Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.platform import own_umask
from codespace.runner import environment, program, quota
from codespace.runner.boxed import Boxed, Uncovered
from codespace.runner.homes import Homes
from codespace.runner.keeper import Keeper
from codespace.runner.monitor import Monitor
from codespace.runner.network.proxy import Proxy
from codespace.runner.network.wayout import WayOut
from codespace.runner.output.spools import Spools
from codespace.runner.pipes import Pipes
from codespace.runner.process import Process
from codespace.runner.terminal import Terminal
from codespace.runner.threads import run_patiently
from codespace.runner.turns import Turns
from codespace.sandbox import degraded
from codespace.sandbox.box import Sandbox, unavailable
from codespace.sandbox.limits import Mechanisms
from codespace.sandbox.probe import Rung

log = structlog.get_logger("codespace.runner")

_HUNG: Final = (
    "Ask the operator to look for a hung disk or network filesystem there, below it, or where its git repository or "
    "the program lies. It holds up no command in another root."
)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What was found out, and made, for one start."""

    program: str
    env: dict[str, str]
    held: quota.Held


class Starter:
    """Starts commands for one supervisor; knows none of them afterwards."""

    def __init__(
        self,
        homes: Homes,
        spools: Spools,
        mechanisms: Mechanisms,
        keeper: Keeper,
        wall_clock: Callable[[], float],
        umask: int | None,
        sandbox: Sandbox | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        self._homes = homes
        self._spools = spools
        self._mechanisms = mechanisms
        self._keeper = keeper
        self._wall_clock = wall_clock
        self._umask = own_umask() if umask is None else umask
        self._sandbox = sandbox
        """None: every command runs without one."""
        self._proxy = proxy
        self._looks = Turns(limits.SPAWN_THREADS)
        self._last_looks = Turns(limits.SPAWN_THREADS)  # their own: a sandbox that stands waits for no scan
        self._making = trio.CapacityLimiter(limits.SPAWN_THREADS)
        """For what touches no file of a workspace: a root that hangs must hold up no other."""

    async def start(self, workspace: Workspace, request: SpawnRequest, cwd_fd: int) -> Process:
        """Start one command; returns it once its program runs. Its private home is made before.

        Raises: Refusal PROCESS_SPAWN_FAILED, SANDBOX_UNAVAILABLE, SHUTTING_DOWN, TIMEOUT where the root does not
            answer; nothing runs then, a home may be left.
        Cancel: as an error.
        Source: limits.SPAWN_SECONDS, limits.SANDBOX_SPAWN_SECONDS; a slow sandbox is not to be had now, and says so.
        """
        rung: Rung = "none"
        if self._sandbox is not None:
            # The probe is bounded by itself: limits.SANDBOX_START_SECONDS for each bubblewrap that is tried.
            if self._sandbox.known is None:
                await trio.to_thread.run_sync(self._sandbox.standing, limiter=self._making)
            rung = self._sandbox.choose(workspace)
            if workspace.network == "enabled" and self._proxy is None:
                raise unavailable("network `enabled` needs a door out of it, and none is opened here")
            if rung == "linux-sandbox":
                try:
                    with trio.fail_after(limits.SANDBOX_SPAWN_SECONDS):
                        return await self._start_boxed(self._sandbox, workspace, request, cwd_fd)
                except trio.TooSlowError:
                    raise unavailable(
                        f"it and the command did not start within {limits.SANDBOX_SPAWN_SECONDS:.0f} s", retry=True
                    ) from None
        try:
            with trio.fail_after(limits.SPAWN_SECONDS):
                return await self._start_plain(workspace, request, cwd_fd, rung)
        except trio.TooSlowError:
            raise Refusal(
                "PROCESS_SPAWN_FAILED",
                f"The command did not start within {limits.SPAWN_SECONDS:.0f} s. It was ended; nothing runs.",
                next_step="Look for a hung network or disk below the program or its directory, and at what the command "
                "may have done, before you send it again.",
            ) from None

    async def _start_plain(self, workspace: Workspace, request: SpawnRequest, cwd_fd: int, rung: Rung) -> Process:
        env = environment.build(workspace.env, request.env, self._homes.path(request.process_id), terminal=request.tty)
        find, seconds = partial(program.find, request.argv[0], env["PATH"]), limits.SPAWN_LOOK_SECONDS
        try:
            found = await self._looks.run_in(workspace, find, cwd_fd, _subject(workspace), seconds, _HUNG)
        except OSError as error:
            raise program.unprepared("The program could not be looked for", error) from error
        prepared = await trio.to_thread.run_sync(
            _prepare, self._homes, self._mechanisms, workspace, request, found, env, limiter=self._making
        )
        try:
            pipes = _open(request)
            try:
                monitor = await self._ask(workspace, request, prepared, pipes, cwd_fd, rung)
                pipes.let_go()
            except BaseException:
                pipes.close()
                raise
        except BaseException:
            prepared.held.cage.close()
            raise
        self._keeper.lay_by()
        spool = self._spools.open(request.process_id)
        return Process(request, monitor, pipes, self._wall_clock, prepared.held, spool, rung)

    async def _start_boxed(self, sandbox: Sandbox, workspace: Workspace, request: SpawnRequest, cwd_fd: int) -> Process:
        try:
            return await self._start_in_box(sandbox, workspace, request, cwd_fd, by_hand=sandbox.by_hand)
        except Uncovered as refused:
            log.warning("sandbox_covers_by_bubblewrap", reason=str(refused), lasting=refused.is_lasting)
            sandbox.by_hand = sandbox.by_hand and not refused.is_lasting
        return await self._start_in_box(sandbox, workspace, request, cwd_fd, by_hand=False)

    async def _start_in_box(
        self, sandbox: Sandbox, workspace: Workspace, request: SpawnRequest, cwd_fd: int, *, by_hand: bool
    ) -> Process:
        look, subject = partial(Boxed.look, sandbox, workspace, request), _subject(workspace)
        prepared = await self._looks.run(workspace, look, subject, next_step=_HUNG)
        boxed = await trio.to_thread.run_sync(Boxed.make, prepared, by_hand, limiter=self._making)
        seconds = limits.SANDBOX_SEAL_SECONDS
        looking = partial(self._last_looks.run, workspace, subject=subject, seconds=seconds, next_step=_HUNG)
        way_out = None
        if workspace.network == "enabled" and self._proxy is not None:
            way_out = WayOut(self._proxy, workspace.allowed_domains, request.process_id)
        try:
            pipes = _open(request)
            try:
                descriptors = (*pipes.theirs, cwd_fd, *boxed.descriptors())
                monitor, pid = await self._order(request, boxed.order(self._umask), descriptors)
                try:
                    stderr = pipes.outputs.get("stderr", pipes.outputs.get("stdout"))
                    door = None if way_out is None else way_out.open
                    again = look if workspace.occupancy == "shared" else None
                    await boxed.open(monitor, pid, looking, stderr, door, again)
                    pipes.let_go()
                except BaseException:
                    monitor.close()
                    if way_out is not None:
                        way_out.drop()
                    raise
            except BaseException:
                pipes.close()
                raise
        except BaseException:
            boxed.close()
            # The last processes may take a moment to be gone; the folders wait for them in a thread.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.HOME_SECONDS):
                await run_patiently(boxed.held.cage.close)
            raise
        self._keeper.lay_by()  # not while the sandbox is set up, which keeps two processors busy
        spool = self._spools.open(request.process_id)
        return Process(request, monitor, pipes, self._wall_clock, boxed.held, spool, "linux-sandbox", boxed, way_out)

    async def _ask(
        self,
        workspace: Workspace,
        request: SpawnRequest,
        prepared: _Prepared,
        pipes: Pipes | Terminal,
        cwd_fd: int,
        rung: Rung,
    ) -> Monitor:
        """Have a monitor start the command itself, restricted by Landlock where that is the rung."""
        order = {
            "program": prepared.program,
            "argv": request.argv,
            "env": prepared.env,
            "umask": self._umask,
            # A sandbox's own program must not take it (Ctrl-C would end it): there it is `lent`.
            "terminal": "controlling" if pipes.is_terminal else "none",
            "cgroups": prepared.held.cage.members,
            "rlimits": prepared.held.rlimits,
        }
        if rung != "landlock":
            return (await self._order(request, order, (*pipes.theirs, cwd_fd)))[0]
        try:
            places = (workspace.root, prepared.env["HOME"])
            terminal = pipes.theirs[0] if pipes.is_terminal else None
            make = partial(degraded.ruleset, places, workspace.readable_paths, terminal)
            seconds = limits.SPAWN_LOOK_SECONDS
            ruleset = await self._looks.open(workspace, make, _subject(workspace), seconds, _HUNG)
        except OSError as error:
            raise unavailable(f"Landlock refused its rules ({error.strerror})") from error
        try:
            order |= {"inherited": 1, "ruleset": True}
            return (await self._order(request, order, (*pipes.theirs, cwd_fd, ruleset)))[0]
        finally:
            os.close(ruleset)

    async def _order(
        self, request: SpawnRequest, order: Mapping[str, Any], descriptors: Sequence[int]
    ) -> tuple[Monitor, int]:
        """Have a monitor start a program; a second one only where the first cannot have started it."""
        for is_last in (False, True):
            keeper = self._keeper.resident
            monitor = Monitor(await self._keeper.monitor())
            event, heard = None, False
            try:
                with contextlib.suppress(trio.TooSlowError):
                    event = await monitor.start(order, descriptors)
                    heard = True
            except OSError as error:
                monitor.close()
                raise program.unprepared("The start could not be asked for", error) from error
            except BaseException:
                monitor.close()
                raise
            if event is not None and event["event"] == "started":
                return monitor, int(event["pid"])
            monitor.close()
            if not heard:
                await self._keeper.replace(keeper)
                raise _unheard()
            # A spare one may have been refused its fork an hour ago: of now that says nothing.
            if event is not None and (is_last or event["stage"] != "monitor"):
                raise program.spawn_failure(request.argv[0], str(event["stage"]), int(event["errno"]))
            if monitor.ready:
                break
        raise Refusal(
            "PROCESS_SPAWN_FAILED",
            "The helper that starts commands was killed while it started this one. What it had started was ended.",
            next_step="Look at what the command may have done before you send it again.",
        )


def _unheard() -> Refusal:
    return Refusal(
        "PROCESS_SPAWN_FAILED",
        f"The helper that watches over commands (codespace-monitor) did not answer within {limits.MONITOR_SECONDS:g} s "
        "and was replaced. Nothing runs of this command.",
        next_step="Call again; if it repeats, ask the operator to look for what stops the processes of CodeSpace.",
    )


def _subject(workspace: Workspace) -> str:
    return f"{display(workspace.root, limit=200)} and what else the start needs"


def _open(request: SpawnRequest) -> Pipes | Terminal:
    try:
        if request.tty:
            return Terminal(request.rows, request.cols)
        return Pipes(stdin=request.stdin is not None or request.open_stdin)
    except OSError as error:
        raise program.unprepared(f"No {'terminal' if request.tty else 'pipe'} could be opened", error) from error


def _prepare(
    homes: Homes, mechanisms: Mechanisms, workspace: Workspace, request: SpawnRequest, found: str, env: dict[str, str]
) -> _Prepared:
    try:
        homes.make(request.process_id)
    except OSError as error:
        problem = "The command's private home could not be made in the state directory"
        raise program.unprepared(problem, error) from error
    try:
        return _Prepared(found, env, quota.hold(mechanisms, workspace))
    except OSError as error:
        raise program.unprepared("The operator's limits on the command could not be put in force", error) from error
