"""The runner in a process of its own, as the gateway's side has it: who starts it, and what is said to it."""
