"""codespace-monitor: owns the process tree of a command, the sandbox's own processes included where it is in one.

Started as a *keeper* (`python -I -S __main__.py`, its control socket on fd 0), it forks one *monitor*
for each socket that it is handed: a fork of a small, loaded interpreter takes under a millisecond,
a new interpreter takes ten times as long. The monitor forks at once what will take the request and become
the command, so that one that is there before it is needed costs no fork at all. It is the subreaper of exactly
one command, so its descendants are the command's tree and nothing else, whatever they do (double forks, setsid).
Its own socket is its lifeline: when the daemon ends, by whatever means, the socket closes and the tree dies.
The keeper is a subreaper too: what a killed monitor leaves behind falls to it and is ended.

It decides nothing: program, directory, environment and descriptors arrive ready. It imports the standard library
and itself only, since `-S` keeps every other package away; its few numbers are its own for that reason.

Wire, both ways one JSON object a line. To a monitor: a request {program, argv, env, umask, terminal,
rlimits, cgroups, inherited, layers, covers} with the descriptors stdin, stdout, stderr, the directory and as many more
as `inherited` says (none where it is left out) by SCM_RIGHTS, then {verb: cover}, {verb: watch} with the descriptor
of a sandbox's table of mounts, and {verb: terminate, grace}.
`terminal` is `none`, `controlling` (descriptors 0 to 2 are a terminal, which the
command gets as its controlling one) or `lent` (they are, but the command's own descendants take it: a sandbox
does so inside). The inherited descriptors are the program's 3, 4 and so on; with `ruleset` the
one that is inherited is a Landlock ruleset, which restricts the program and is closed. `layers` generations of the tree
are a sandbox's own and hear no SIGTERM. `rlimits` are [number, soft, hard], `cgroups` files that take the
command's pid. `covers` are {directories, files, read_only, masked_directories, masked_files}: what is laid over in a
sandbox, once the verb says that it stands.
From it: {event: ready}; {event: started, pid} or {event: failed, stage, errno}; {event: covered, errno, masking}, 0
where all was, and whether it came to what is masked;
{event: mounts} each time that the table which is watched has changed;
{event: exited, code, asked, usage} when the command itself ended, and whether it had been asked to;
{event: gone, usage} when nothing of its tree is left.
"""
