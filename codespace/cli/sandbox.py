"""`codespace sandbox run DIR -- CMD`: the sandbox of commands, for a person who wants to try it, or break it."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from typing import Any, Final

import trio

from codespace import cli, limits, log
from codespace.contract import Domain, Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.runner import environment
from codespace.runner.network.proxy import Proxy
from codespace.runner.network.wayout import WayOut
from codespace.runner.protected import protected_paths
from codespace.runner.terminal import Terminal
from codespace.sandbox import foreground, spawn
from codespace.sandbox.box import HOME, Prepared, Sandbox, choose
from codespace.sandbox.proxyenv import proxy_environment
from codespace.settings import SettingsError, keys, patterns, roots

NOT_RUN: Final = 125
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ALLOW: Final = re.compile(r"(?P<host>[^:=]+)(:(?P<port>\d{1,5}))?(=(?P<address>.+))?")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code is ours, 128 and more for a signal, 125 where nothing was run."""
    log.configure(level="warning", form="console")
    root = os.path.realpath(arguments.directory)
    if not arguments.directory or root in ("/", os.path.realpath(os.path.expanduser("~"))) or not os.path.isdir(root):
        print("codespace: DIR must be a directory, and neither / nor your home.", file=sys.stderr)
        return cli.USAGE
    if arguments.allow and arguments.network != "enabled":
        print("codespace: --allow is about a network that is enabled; add --network enabled.", file=sys.stderr)
        return cli.USAGE
    gone = [each for each in arguments.readable if not os.path.exists(each)]
    if gone:
        print(f"codespace: --readable {display(gone[0])}: there is no such file or directory.", file=sys.stderr)
        return cli.USAGE
    try:
        hidden = keys.WORKSPACE["hidden_paths"].kind.check("--hidden", arguments.hidden)
        patterns.refuse_whole_paths("--hidden", hidden, {os.path.abspath(arguments.directory), root})
        domains = keys.WORKSPACE["allowed_domains"].kind.check("--allow", [_entry(each) for each in arguments.allow])
        readable = tuple(os.path.realpath(each) for each in arguments.readable)
        for each in readable:
            roots.refuse_own("--readable", each)
        workspace = Workspace(
            id="run",
            root=root,
            profile="workspace-write",
            network=arguments.network,
            allowed_domains=domains,
            git=arguments.git,
            hidden_paths=hidden,
            readable_paths=readable,
            sandbox="required",
        )
        prepared = _prepare(workspace, arguments.command)
        return trio.run(_run, prepared, domains)
    except SettingsError as error:
        print(f"codespace: {display(error.key)}: {display(error.problem)} {display(error.fix)}", file=sys.stderr)
        return cli.USAGE
    except Refusal as refusal:
        return _not_run(f"{refusal.message} {refusal.next_step or ''}")
    except (spawn.NotStarted, OSError) as problem:
        return _not_run(str(problem))


def _entry(allowed: str) -> Any:
    """Return HOST[:PORT][=ADDRESS] as the configuration file spells it."""
    found = _ALLOW.fullmatch(allowed)
    if found is None or found["address"] is None:
        return allowed
    port = {} if found["port"] is None else {"port": int(found["port"])}
    return {"host": found["host"], "address": found["address"], **port}


def _not_run(problem: str) -> int:
    print(f"codespace: {display(problem, limit=4000)}", file=sys.stderr)
    return NOT_RUN


def _prepare(workspace: Workspace, command: list[str]) -> Prepared:
    sandbox = Sandbox()
    choose(sandbox.standing(), workspace)
    terminal = all(os.isatty(number) for number in (0, 1, 2))
    env = environment.build({}, {}, HOME, terminal=terminal)
    if workspace.network == "enabled":
        env |= proxy_environment()
    environment.check_argv(command)
    return sandbox.prepare(
        workspace, command=command, cwd=".", env=env, protected=protected_paths(workspace), tty=terminal
    )


class _Ending:
    """What ends a run early: a signal, or a terminal that has hung up. The first one counts."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.told, self._telling = os.pipe()
        self._patience = trio.CancelScope()

    def begin(self, number: signal.Signals) -> None:
        if self.number is None:
            self.number = number
            os.write(self._telling, b"x")
            self._patience.cancel()

    def patience(self) -> trio.CancelScope:
        """Return a scope for the one thing that may take its time, for as long as nothing ends the run early."""
        self._patience = trio.CancelScope(shield=True)
        if self.number is not None:
            self._patience.cancel()
        return self._patience

    async def hear(self) -> None:
        """Turn requests to end into the end of the run; in a terminal Ctrl-C is a key, and goes inside."""
        with trio.open_signal_receiver(*_ENDING) as signals:
            async for number in signals:
                self.begin(signal.Signals(number))

    def close(self) -> None:
        os.close(self.told)
        os.close(self._telling)


class _Session:
    """One run, with what is beside it: the door of its network, and the person's terminal."""

    def __init__(self, prepared: Prepared, domains: tuple[Domain, ...], nursery: trio.Nursery, proxy: Proxy) -> None:
        self._prepared = prepared
        self._nursery = nursery
        networked = prepared.workspace.network == "enabled"
        self.way_out = WayOut(proxy, domains, "run") if networked else None

    def start(self, descriptors: tuple[int, int, int], until: int) -> foreground.Outcome:
        """Run it to its end, from a thread that does nothing else: the sandbox dies with who has started it."""
        stdin, stdout, stderr = descriptors
        return foreground.run(
            self._prepared.equipment,
            self._prepared.plan,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            until=until,
            observe=self._observe,
        )

    def _observe(self, launch: spawn.Launch) -> None:
        """Called behind the shut gate."""
        if launch.missing_program():
            raise Refusal(
                "PROCESS_SPAWN_FAILED",
                f"{display(self._prepared.plan.command[0])}: there is no such program inside. Nothing was started.",
                next_step="Programs are those of /usr and of DIR; name the directory of others with --readable.",
            )
        if self.way_out is not None:
            assert launch.pid is not None
            trio.from_thread.run(self._open_door, launch.pid)

    async def _open_door(self, pid: int) -> None:
        assert self.way_out is not None
        await self.way_out.open(pid)
        self._nursery.start_soon(self.way_out.watch)


async def _run(prepared: Prepared, domains: tuple[Domain, ...]) -> int:
    ending = _Ending()
    proxy = Proxy()
    outcome: foreground.Outcome | None = None
    problem: BaseException | None = None  # raised below: out of `except*` early releases of 3.11 make a group of it
    try:
        async with trio.open_nursery() as nursery:
            session = _Session(prepared, domains, nursery, proxy)
            nursery.start_soon(ending.hear)
            if prepared.plan.tty:
                outcome = await _in_terminal(nursery, session, ending)
            else:
                outcome = await trio.to_thread.run_sync(session.start, (0, 1, 2), ending.told)
            nursery.cancel_scope.cancel()
        if session.way_out is not None:
            await session.way_out.close()
            with trio.move_on_after(limits.DRAIN_SECONDS):  # a terminal may have stopped to take anything
                await trio.to_thread.run_sync(_tell, session.way_out.notes(), abandon_on_cancel=True)
    except* Refusal as refused:
        problem = _first(refused)
    except* (spawn.NotStarted, OSError) as problems:
        if ending.number is None:  # else it was ended in the middle of its start
            problem = problem or _first(problems)
    finally:
        await proxy.aclose()
        ending.close()
    if problem is not None:
        raise problem
    return _exit_code(outcome, ending)


def _tell(notes: Sequence[str]) -> None:
    """Say what the network of a run refused. By no stream of Python's: a stalled terminal would keep its lock."""
    if sys.stderr is None:  # something else has its number
        return
    with contextlib.suppress(OSError):  # nobody is there any more to be told
        for note in notes:
            os.write(2, f"codespace: {display(note)}\n".encode())


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    problem: BaseException = group
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


def _exit_code(outcome: foreground.Outcome | None, ending: _Ending) -> int:
    if outcome is None or outcome.cut:
        return 128 + (ending.number or signal.SIGTERM)
    code = outcome.code if outcome.ended is None else outcome.ended
    return code if code >= 0 else 128 - code


async def _in_terminal(nursery: trio.Nursery, session: _Session, ending: _Ending) -> foreground.Outcome:
    """Give the command a terminal of its own and carry keys and text between that and the person's."""
    terminal = Terminal(*termios.tcgetwinsize(0))
    master = terminal.outputs["stdout"]
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        nursery.start_soon(_keys, master, ending)
        nursery.start_soon(_follow_size, terminal)
        (slave, *_) = terminal.theirs
        async with trio.open_nursery() as showing:
            showing.start_soon(_show, master, ending)
            outcome = await trio.to_thread.run_sync(session.start, (slave, slave, slave), ending.told)
            terminal.let_go()  # what is left to show comes, and then the end
            showing.cancel_scope.deadline = trio.current_time() + limits.DRAIN_SECONDS
        return outcome
    finally:
        with contextlib.suppress(termios.error):  # it has hung up, and is nobody's any more
            termios.tcsetattr(0, termios.TCSANOW, before)  # which waits for no terminal that takes nothing
        terminal.close()


async def _keys(master: int, ending: _Ending) -> None:
    while True:
        await trio.lowlevel.wait_readable(0)
        block = b""
        with contextlib.suppress(OSError):
            block = os.read(0, limits.PIPE_READ_BYTES)
        if not block:  # Ctrl-D is a key like others: no terminal that is there says this
            return ending.begin(signal.SIGHUP)
        while block:
            await trio.lowlevel.wait_writable(master)
            block = block[os.write(master, block) :]


async def _show(master: int, ending: _Ending) -> None:
    while True:
        await trio.lowlevel.wait_readable(master)
        try:
            block = os.read(master, limits.PIPE_READ_BYTES)
        except BlockingIOError:
            continue
        except OSError:  # nobody has the terminal open any more
            return
        while block:
            # A terminal that is held up is waited for as by any program: until it goes on, or until it is enough.
            with ending.patience() as patience:
                try:
                    block = block[await trio.to_thread.run_sync(os.write, 1, block, abandon_on_cancel=True) :]
                except OSError:
                    return ending.begin(signal.SIGHUP)
            if patience.cancelled_caught:
                return


async def _follow_size(terminal: Terminal) -> None:
    with trio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            with contextlib.suppress(termios.error):  # it has hung up
                terminal.resize(*termios.tcgetwinsize(0))
