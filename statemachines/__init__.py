"""The law: which step may follow which, as declarations on python-statemachine.

Each module holds one machine. A state's name is a promise about the world while it is recorded, an
event is a fact that happened, and an event's name is the reason why its transitions exist. Nothing
here does I/O, reads a clock, waits or logs; no transition has a guard or a callback, so what may
happen next depends on state and event alone.
"""
