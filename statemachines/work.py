"""The law of a work: a named stretch of an agent's doing that the operator can steer."""

from __future__ import annotations

from statemachine import Event, State, StateMachine


class Work(StateMachine):
    """One work, from work_open until nothing can be added to it."""

    active = State("The agent works; intents are delivered at its checkpoints.", initial=True)
    closing = State("It is ending: nothing new is accepted, and what is left is being settled.")
    closed = State("Nothing of it is open any more.", final=True)

    finish_begun = Event(
        active.to(closing), name="The agent is done and no input waits, or the operator ordered a stop."
    )
    finish_completed = Event(closing.to(closed), name="Its intents are settled, and its commands have ended.")
