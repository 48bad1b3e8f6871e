"""What a command is locked into: a Linux sandbox made by bubblewrap, and the truth about it.

Used by the supervisor in the daemon's own process and by the program codespace-linux-sandbox
(`helper/sandbox`). `plan` looks at a workspace and says what is to be protected, `argv` writes the
command line, `spawn` watches over the start and opens the gate, `probe` finds out what is in force.
Nothing here decides policy and nothing here creates a name inside a workspace, but for the guards of `git: commit`.
"""
