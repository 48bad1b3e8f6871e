"""The law of an intent: what the operator wants next, seen by the agent only once it is queued."""

from __future__ import annotations

from statemachine import Event, State, StateMachine


class Intent(StateMachine):
    """One message from the operator to the agent's work."""

    draft = State("Only the operator sees it, and may edit it.", initial=True)
    queued = State("It waits for the agent's next checkpoint; the operator may still edit it.")
    claimed = State("The agent has its text; it is frozen.")
    done = State("The agent says that it is done.", final=True)
    blocked = State("The agent says why it could not be done.", final=True)
    cancelled = State("It was withdrawn before the agent saw it.", final=True)
    superseded = State("Another intent or the end of the work took its place before the agent saw it.", final=True)

    released = Event(draft.to(queued), name="The operator wants it delivered.")
    rewritten = Event(
        draft.to(draft) | queued.to(queued),
        name="The operator changed its text, kind or delivery; the agent has not seen it.",
    )
    moved = Event(draft.to(draft) | queued.to(queued), name="The operator changed its place among those that wait.")
    carried = Event(
        draft.to(draft) | queued.to(queued),
        name="It is meant for the next work, and that was opened; its own work takes nothing more.",
    )
    taken = Event(queued.to(claimed), name="The agent asked for its next intent; one claim, by one agent.")
    completed = Event(claimed.to(done), name="The agent reported success.")
    gave_up = Event(claimed.to(blocked), name="The agent reported that it cannot go on with it.")
    withdrawn = Event(
        draft.to(cancelled) | queued.to(cancelled), name="The operator no longer wants it; what was claimed stays said."
    )
    overtaken = Event(
        draft.to(superseded) | queued.to(superseded),
        name="A stop notice, the end of its work or an intent that supersedes it made it meaningless.",
    )
