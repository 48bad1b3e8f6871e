"""The law of a hold: a request that waits for a grant, then runs at most once."""

from __future__ import annotations

from statemachine import Event, State, StateMachine


class Approval(StateMachine):
    """A held request, from the moment it is shown until its body is gone."""

    pending = State("The request is stored as it was shown; nothing of it was done.", initial=True)
    granted = State("Someone who may grant it did; nothing of it was done yet.")
    resuming = State("A daemon is running it, for the first and only time.")
    consumed = State("It ran once or can never run; its result is stored, its body is gone.", final=True)
    denied = State("It will never run; nothing of it was done, its body is gone.", final=True)

    grant_given = Event(pending.to(granted), name="What was shown is wanted.")
    grant_refused = Event(
        pending.to(denied) | granted.to(denied),
        name="What was shown is not wanted, or no longer; a grant can be taken back until it is used.",
    )
    time_ran_out = Event(
        pending.to(denied) | granted.to(denied),
        name="A hold shows the world of a moment and keeps the request's body; neither may wait without end.",
    )
    resume_begun = Event(
        granted.to(resuming), name="Recorded before the request acts, so that no second resume can begin."
    )
    workspace_was_busy = Event(
        resuming.to(granted), name="Nothing was done because something else held the workspace; the grant stays good."
    )
    request_ended = Event(resuming.to(consumed), name="It ran; its result is stored and only ever replayed.")
    world_had_changed = Event(
        resuming.to(consumed), name="The world was not what the hold showed; the stored result is APPROVAL_CONFLICT."
    )
    daemon_died = Event(
        resuming.to(consumed),
        name="Whether the command started, or how it ended, was not seen; it never starts twice: APPROVAL_AMBIGUOUS.",
    )
