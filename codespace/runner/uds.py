"""The runner in a process of its own, as the gateway sees it: every verb crosses a private Unix socket.

Nothing is decided here. What this side adds is the truth about a lost worker: what was not sent did not
happen, what changes nothing is asked again, and of the rest it is said that nobody saw it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import trio

from codespace import limits
from codespace.beneath import clean
from codespace.contract import Chunk, Kept, ProcessState, Runner
from codespace.errors import Refusal
from codespace.runner import environment
from codespace.runner.process import exited_refusal
from codespace.runner.worker.ahead import Ahead
from codespace.runner.worker.crew import Crew
from codespace.runner.worker.hire import Place
from codespace.runner.worker.link import Lost
from codespace.runner.worker.mirror import Known, Mirror
from codespace.runner.worker.verbs import TELLINGS, VERBS, Verb
from codespace.sandbox.box import Sandbox

_ENOUGH_BYTES: Final = 4
# The longest UTF-8 character: with so much behind a cursor there is a whole one.


@asynccontextmanager
async def open_runner(
    *,
    state_dir: str,
    rg_path: str | None,
    bwrap_path: str | None,
    retention_seconds: float,
    wall_clock: Callable[[], float],
    spool_bytes: int = limits.SPOOL_BYTES,
    process_spool_bytes: int = limits.PROCESS_SPOOL_BYTES,
    sandbox: Sandbox | None = None,
    networked: bool = False,
    runner_dir: str | None = None,
    log_level: str = "info",
) -> AsyncIterator[Runner]:
    """Run the runner in a worker until the block ends; then it, its helpers and its processes are gone.

    Args:
        sandbox: Whether commands are locked in at all; the worker makes its own, which probes for itself.
        networked: Whether a workspace's commands may have a network.
        runner_dir: Where its socket's directory is made; None for the state directory.
    Raises: Refusal INTERNAL where there is no such worker to be had.
    """
    orders = {
        "state_dir": state_dir,
        "rg_path": rg_path,
        "bwrap_path": bwrap_path,
        "retention_seconds": retention_seconds,
        "spool_bytes": spool_bytes,
        "process_spool_bytes": process_spool_bytes,
        "sandbox": sandbox is not None,
        "networked": networked,
        "log_level": log_level,
    }
    place = await trio.to_thread.run_sync(Place, runner_dir or state_dir)
    try:
        mirror = Mirror(retention_seconds, wall_clock)
        async with trio.open_nursery() as nursery:
            crew = Crew(nursery, place.path, orders, mirror.update, mirror.leave)
            try:
                await crew.link()
                yield cast(Runner, Uds(crew, mirror, wall_clock, Ahead(nursery)))
            finally:
                seconds = limits.WORKER_STOP_SECONDS + 2 * limits.WORKER_TREES_SECONDS
                # Protects the orderly end of the worker, as the in-process runner's own end is protected.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
                    await crew.close()
                nursery.cancel_scope.cancel()
    finally:
        # Protects the removal of one empty directory; the next start sweeps what is left.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.TIDY_SECONDS):
            await trio.to_thread.run_sync(place.close)


class Uds:
    """Implements `contract.Runner`: verbs of the table by `__getattr__`, the rest below."""

    def __init__(self, crew: Crew, mirror: Mirror, wall_clock: Callable[[], float], ahead: Ahead) -> None:
        self._crew = crew
        self._mirror = mirror
        self._wall_clock = wall_clock
        self._ahead = ahead

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name not in VERBS:
            raise AttributeError(name)
        verb = VERBS[name]

        async def ask(*arguments: Any, **named: Any) -> Any:
            return await self._ask(verb, verb.bind(arguments, named))

        return ask

    @property
    def worker(self) -> int | None:
        """The worker's process id, None where there is none now."""
        return self._crew.pid

    # --- answered here ---

    def check(self, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        environment.check_argv(argv)
        environment.check(env)
        clean(cwd, "cwd")

    def process(self, process_id: str) -> ProcessState:
        return self._mirror.find(process_id).state

    def knows(self, process_id: str) -> bool:
        return self._mirror.knows(process_id)

    async def wait_exit(self, process_id: str) -> ProcessState:
        known = self._mirror.find(process_id)
        await known.ended.wait()
        return known.state

    # --- told ---

    def forget(self, process_id: str) -> None:
        if self._mirror.forget(process_id):
            self._tell("forget", process_id=process_id)

    def cut_off(self) -> None:
        self._tell("cut_off")

    def _tell(self, name: str, **arguments: Any) -> None:
        link = self._crew.link_nowait()
        if link is not None:
            link.tell(TELLINGS[name], arguments)

    # --- asked, with something to add ---

    async def describe(self, *arguments: Any, **named: Any) -> Mapping[str, Any]:
        verb = VERBS["describe"]
        facts: Mapping[str, Any] = await self._ask(verb, verb.bind(arguments, named))
        return {**facts, "runner": "uds"}

    async def _ask(self, verb: Verb, arguments: Mapping[str, Any]) -> Any:
        if verb.loss == "gone":
            return await self._ask_about(verb, arguments)
        for is_last in (False, True):
            link, number = await self._link_for(verb)
            landed = partial(self._land, arguments, number)
            try:
                return await link.call(verb, arguments, self._wall_clock(), landed)
            except Lost as found:
                lost = found
            await self._crew.wait_buried(number)
            if is_last or (lost.sent and verb.loss != "again"):
                raise _refusal(verb, lost, arguments)
        raise AssertionError("the last try ends the loop")

    async def _link_for(self, verb: Verb) -> tuple[Any, int]:
        try:
            return await self._crew.link()
        except Refusal as refusal:
            if verb.name == "spawn" and refusal.code == "INTERNAL":
                raise Refusal("PROCESS_SPAWN_FAILED", refusal.message, next_step=refusal.next_step) from None
            raise

    def _land(self, arguments: Mapping[str, Any], number: int, result: Any) -> None:
        """Learn from an answer before any news behind it."""
        if isinstance(result, ProcessState):
            self._mirror.update(result)
        elif isinstance(result, Chunk):
            self._mirror.update(result.state)
        elif "request" in arguments:
            self._mirror.begin(arguments["request"].process_id, result, number)

    # --- about a process ---

    async def _ask_about(self, verb: Verb, arguments: Mapping[str, Any]) -> Any:
        known = self._mirror.find(arguments["process_id"])
        if verb.name == "wait_output" and _has_more(known, arguments):
            await trio.lowlevel.checkpoint()
            return None
        if verb.name == "output" and known.ended.is_set():
            return await self._page(known, arguments)
        return await self._ask_or_answer(verb, known, arguments)

    async def _page(self, known: Known, arguments: Mapping[str, Any]) -> Chunk:
        """Return output of an ended process, and have the worker get what follows meanwhile."""
        chunk = await self._ahead.take(arguments)
        reads_on = chunk is not None
        if chunk is None:
            chunk = cast(Chunk, await self._ask_or_answer(VERBS["output"], known, arguments))
        self._ahead.follow(arguments, chunk, partial(self._try_page, known), reads_on=reads_on)
        return chunk

    async def _try_page(self, known: Known, arguments: Mapping[str, Any]) -> Chunk | None:
        with suppress(Lost, Refusal):
            return cast(Chunk, await self._ask_once(VERBS["output"], known, arguments))
        return None

    async def _ask_once(self, verb: Verb, known: Known, arguments: Mapping[str, Any]) -> Any:
        """Return the answer of the worker that has the process. Raises: Refusal, Lost."""
        link = None if known.is_left else self._crew.link_nowait(known.worker)
        if link is None:
            raise Lost("it ended before", sent=False)
        landed = partial(self._land, arguments, known.worker)
        return await link.call(verb, arguments, self._wall_clock(), landed)

    async def _ask_or_answer(self, verb: Verb, known: Known, arguments: Mapping[str, Any]) -> Any:
        try:
            return await self._ask_once(verb, known, arguments)
        except Lost as found:
            lost = found
        await self._crew.wait_buried(known.worker)
        await trio.lowlevel.checkpoint()
        return await self._answer_for_lost(verb, known, arguments, was_sent=lost.sent)

    async def _answer_for_lost(self, verb: Verb, known: Known, arguments: Mapping[str, Any], *, was_sent: bool) -> Any:
        if verb.name == "output":
            return await self._kept(known, arguments)
        if verb.name == "write_stdin" and was_sent:
            raise _half_fed(known.state)
        if verb.name in ("write_stdin", "resize"):
            raise exited_refusal(known.state, 0 if verb.name == "write_stdin" else None)
        return known.state if verb.name == "terminate" else None

    async def _kept(self, known: Known, arguments: Mapping[str, Any]) -> Chunk:
        """Return what a process that is gone with its worker had written, as far as it lies on disk."""
        total = known.state.output_total[arguments["stream"]]
        cursor = arguments["cursor"]
        kept = Kept("", "text", cursor, True, total, 0, 0, known.state.output_total)
        if known.spool is not None:
            asked = {name: arguments[name] for name in ("cursor", "stream", "limit_bytes", "encoding")}
            kept = await self._ask(VERBS["kept_output"], {"spool": known.spool, **asked, "ended": True})
        kept = kept.against(cursor, total)
        return Chunk(
            kept.text,
            kept.encoding,
            kept.cursor,
            kept.eof,
            kept.retained_from,
            kept.output_lost,
            known.state,
            kept.retained_head,
            kept.replaced,
        )


def _has_more(known: Known, arguments: Mapping[str, Any]) -> bool:
    """Return whether it is known, without asking, that there is output behind the cursor or will be none."""
    behind = known.state.output_total[arguments["stream"]] - arguments["cursor"]
    return known.ended.is_set() or behind >= _ENOUGH_BYTES


def _half_fed(state: ProcessState) -> Refusal:
    """Return what who wrote to a process is told when it went with its worker meanwhile."""
    return Refusal(
        "PROCESS_EXITED",
        "The process has ended (its end is not known); how many of these bytes it was given before was not seen.",
        details=exited_refusal(state, None).details,
        process_id=state.process_id,
    )


def _refusal(verb: Verb, lost: Lost, arguments: Mapping[str, Any]) -> Refusal:
    ended = f"The runner's process was lost while it worked on this ({lost.reason})"
    again = "Call again: a new one is started."
    if not lost.sent or verb.loss == "again":
        return Refusal("INTERNAL", f"{ended}, twice. Nothing was changed.", next_step=again, retryable=True)
    if verb.loss == "nothing":
        return Refusal("INTERNAL", f"{ended}. Nothing was written.", next_step=again, retryable=True)
    if verb.name == "spawn":
        return Refusal(
            "OUTCOME_UNKNOWN",
            f"{ended}. Whether the command had been started was not seen; if it had, it was ended with it.",
            next_step="Look at what the command may have done before you send it again.",
            retryable=False,
            details={"dispatch_status": "unknown"},
            process_id=arguments["request"].process_id,
        )
    return Refusal("OUTCOME_UNKNOWN", f"{ended}. What is on disk is decided from the journal.")
