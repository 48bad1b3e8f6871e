"""The law of a grant: what the operator allowed beforehand, for a scope and a time."""

from __future__ import annotations

from statemachine import Event, State, StateMachine


class Grant(StateMachine):
    """One scoped grant, from the operator's word until it grants nothing any more."""

    active = State("Holds of its scope are granted without asking the operator again.", initial=True)
    revoked = State("It grants nothing any more, by the operator's word; its terms are gone.", final=True)
    lapsed = State("It grants nothing any more, because its time is over; its terms are gone.", final=True)

    taken_back = Event(active.to(revoked), name="The operator does not want it any more.")
    time_ran_out = Event(active.to(lapsed), name="It was given for a time, or for the life of one daemon.")
