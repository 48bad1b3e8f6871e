"""The law of a command: it is started at most once, and how it ended is always told."""

from __future__ import annotations

from statemachine import Event, State, StateMachine


class Execution(StateMachine):
    """One exec_command, from its name to the end of its process tree."""

    minted = State("The operation has an id, and its key is taken; nothing was started.", initial=True)
    spawning = State("The program may have been started.")
    running = State("The program was started and has not been seen to end.")
    draining = State("The program ended; its tree is being ended and its last output read.")
    unknown = State("Whether it started, runs or ended cannot be seen now.")
    exited = State("It ended, none of its tree is left, and its exit record is stored.", final=True)
    spawn_failed = State("Nothing was started.", final=True)
    lost = State("It is gone and nobody saw how it ended.", final=True)

    start_ordered = Event(
        minted.to(spawning), name="Recorded before the program is started, so that no crash can start it twice."
    )
    start_refused = Event(
        spawning.to(spawn_failed), name="The system, the sandbox, the database or a stop refused to start it."
    )
    started = Event(spawning.to(running), name="The program runs and has a process_id.")
    ended = Event(running.to(draining), name="The program ended, by itself or by order.")
    drained = Event(draining.to(exited), name="The tree is gone and all output was read; the exit record is complete.")
    owner_gone = Event(
        spawning.to(lost) | running.to(lost) | draining.to(lost),
        name="Its daemon or runner died, which ended its tree; no exit record was left.",
    )
    sight_lost = Event(
        spawning.to(unknown) | running.to(unknown) | draining.to(unknown),
        name="Its owner does not answer, so nothing is claimed until it can be seen.",
    )
    found_exited = Event(unknown.to(exited), name="An exit record was found.")
    found_never_started = Event(unknown.to(spawn_failed), name="It was found that nothing had been started.")
    found_lost = Event(unknown.to(lost), name="Nothing of it is left, and no exit record was found.")
