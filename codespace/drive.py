"""The one loop that moves a machine: decide, record, and only then let the caller act.

It knows no table and no file. The law (`statemachines`) says what may follow, a Recorder writes it
down, and a Motion keeps the state of one subject. It must not do what a state stands for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final, Protocol

import trio
from statemachine import StateMachine
from statemachine.exceptions import TransitionNotAllowed

from codespace import limits
from codespace.errors import Refusal

_DURABLE: Final = frozenset({("patch", "applying")})
# Beside final states: behind `applying` files change, and only the record says that a journal matters.


UNKNOWN: Final = "unknown"
"""`details["outcome"]` of a STORE_UNAVAILABLE after which it may or may not be recorded."""


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of one subject, decided by its law and ready to be recorded."""

    machine: str
    subject: str
    source: str
    event: str
    target: str
    reason: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the subject's row that change with the state."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON for the event row: hashes and codes, never patch text, argv or output."""
    durable: bool = False
    """Must survive a power loss before the caller acts on it."""


class Impossible(Exception):
    """The law knows no such step; nothing was recorded. A fault of the caller's code, not of the world."""

    def __init__(self, machine: str, subject: str, state: str, event: str) -> None:
        super().__init__(f"{machine} {subject}: {event!r} cannot happen in state {state!r}; nothing was recorded.")
        self.machine, self.subject, self.state, self.event = machine, subject, state, event


class Stale(Exception):
    """The recorded state is not the one the step starts from; nothing was recorded."""

    def __init__(self, subject: str, expected: str, actual: str | None) -> None:
        found = "is not recorded" if actual is None else f"is recorded as {actual!r}"
        super().__init__(f"{subject} {found}, not as {expected!r}; nothing was recorded.")
        self.subject, self.expected, self.actual = subject, expected, actual


class Recorder(Protocol):
    """Where steps are written down."""

    async def record(self, steps: Sequence[Step]) -> None:
        """Write all steps in one transaction: compare-and-set, the row's changes, one event row each.

        Raises: Stale; Refusal STORE_UNAVAILABLE. Either way nothing was recorded, unless the refusal's
            details say `outcome: unknown`.
        """

    async def look(self, subject: str) -> str | None:
        """Return the recorded state of `subject`; None where it has none. What `record` began is over by then.

        Raises: Refusal STORE_UNAVAILABLE.
        """


class Nothing:
    """A recorder that stores nothing: for check_only, and for the plan behind a hold."""

    async def record(self, steps: Sequence[Step]) -> None:
        await trio.lowlevel.checkpoint()

    async def look(self, subject: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return None


def is_unsure(problem: BaseException) -> bool:
    """Return whether what was to be recorded may be recorded all the same."""
    return isinstance(problem, Refusal) and (problem.details or {}).get("outcome") == UNKNOWN


def machine_name(law: type[StateMachine]) -> str:
    """Return the word for `law` in steps and events: `patch`, `execution`, `approval`, `grant`, `work`, `intent`."""
    return law.__name__.lower()


@functools.cache
def finals(law: type[StateMachine]) -> frozenset[str]:
    """Return the states of `law` after which nothing follows."""
    return frozenset(str(state.id) for state in law.states if state.final)


@functools.cache
def decide(law: type[StateMachine], state: str, event: str) -> tuple[str, str]:
    """Return (target, reason) of `event` in `state`, as the engine of `law` says.

    The answer is kept: a law has no guards, so it depends on nothing else, and asking the engine
    anew costs 0.15 ms of the event loop for each step.

    Raises: LookupError, where the law has no such state or no such step.
    """
    model = SimpleNamespace(state=state)
    engine = law(model=model)  # restored through the model: no callback of entering fires
    try:
        engine.send(event)
    except TransitionNotAllowed:
        raise LookupError(f"{event!r} in {state!r}") from None
    return str(model.state), str(getattr(law, event).name)


class Motion:
    """One subject under its law: what it is now, and the only way to make it something else.

    Args:
        law: A machine of `statemachines`.
        subject: The id whose row is moved.
        state: What is recorded for it now.
        recorder: Where its steps are written.
    """

    def __init__(self, law: type[StateMachine], subject: str, state: str, recorder: Recorder) -> None:
        self._law = law
        self._recorder = recorder
        self._unsure: tuple[Step, ...] = ()
        self.subject = subject
        self.state = state

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.state in finals(self._law)

    def can(self, event: str) -> bool:
        """Return whether `event` may happen now."""
        try:
            decide(self._law, self.state, event)
        except LookupError:
            return False
        return True

    def steps(
        self,
        *events: str,
        changes: Mapping[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
        durable: bool | None = None,
    ) -> tuple[Step, ...]:
        """Decide `events` one after another and return them; nothing is recorded or adopted.

        `changes` and `details` go with the last step. For transactions over several subjects:
        `await ledger.apply([*a.steps("x"), *b.steps("y")])`, then `adopt` on each.

        Raises: Impossible, for the first event that cannot happen.
        """
        machine, state, decided = machine_name(self._law), self.state, list[Step]()
        for event in events:
            try:
                target, reason = decide(self._law, state, event)
            except LookupError:
                raise Impossible(machine, self.subject, state, event) from None
            flush = (target in finals(self._law) or (machine, target) in _DURABLE) if durable is None else durable
            decided.append(Step(machine, self.subject, state, event, target, reason, durable=flush))
            state = target
        if decided:
            decided[-1] = replace(decided[-1], changes=dict(changes or {}), details=dict(details or {}))
        return tuple(decided)

    def adopt(self, steps: Sequence[Step]) -> None:
        """Take over the state that recorded `steps` lead to."""
        mine = [step for step in steps if step.subject == self.subject]
        if mine:
            self.state = mine[-1].target

    async def make_sure(self) -> None:
        """Adopt or drop what a move that was not seen to end may have recorded.

        Raises: Refusal STORE_UNAVAILABLE, while that cannot be seen.
        Cancel: none in here, as in `move`.
        """
        if self._unsure:
            await self._make_sure()

    async def move(
        self,
        *events: str,
        changes: Mapping[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
        durable: bool | None = None,
    ) -> None:
        """Record `events` as one transaction and adopt the state behind them.

        Args:
            events: What happened, in order.
            changes: Columns of the subject's row that change with the last one.
            details: Plain JSON for the last event row.
            durable: Flush to disk before returning; by default at final states and at `applying`.
        Raises: Impossible, Stale, Refusal STORE_UNAVAILABLE; the state stays as it was.
        Cancel: none in here. It is recorded and adopted, or neither; a pending cancel is delivered at
            the caller's next checkpoint, so that cleaning up can record without a shield of its own.
        Source: limits.RECORD_SECONDS.
        """
        await self.make_sure()
        steps = self.steps(*events, changes=changes, details=details, durable=durable)
        if not steps:
            return
        failure: Refusal | None = None
        try:
            # Protects "recorded and adopted are one act". The store ends by itself well before; if time
            # runs out all the same, what is recorded is looked up before anything is decided.
            with trio.fail_after(limits.RECORD_SECONDS, shield=True):
                await self._recorder.record(steps)
        except Refusal as error:
            failure = error
        except trio.TooSlowError:
            failure = Refusal("STORE_UNAVAILABLE", "The database did not answer in time.", details={"outcome": UNKNOWN})
        if failure is None:
            self.adopt(steps)
            return
        if not is_unsure(failure):
            raise failure
        self._unsure = steps
        await self._make_sure(failure)

    async def _make_sure(self, failure: Exception | None = None) -> None:
        """Look whether steps whose record ended unseen are there, and adopt or drop them.

        Raises: `failure`, where they are not there; Refusal STORE_UNAVAILABLE, while it cannot be seen.
        """
        actual: str | None = None
        seen = False
        # Protects the look that decides what is true; when it runs out nothing is adopted, and the
        # next move looks again.
        with suppress(Refusal), trio.move_on_after(limits.LOOK_SECONDS, shield=True):
            actual = await self._recorder.look(self.subject)
            seen = True
        if not seen:
            raise Refusal(
                "STORE_UNAVAILABLE",
                f"Whether {self.subject} became {self._unsure[-1].target!r} is not known yet.",
                details={"outcome": UNKNOWN},
            ) from failure
        steps, self._unsure = self._unsure, ()
        if actual == steps[-1].target:
            self.adopt(steps)
        elif failure is not None:
            raise failure
