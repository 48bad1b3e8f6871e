"""codespace-network-proxy: the only way out of a network-enabled sandbox.

A *keeper* (`python -I -m helper.proxy`) forks one *door* for each run. A door is told once which
names its run may reach and is handed the listening socket that was bound inside the run's own
network namespace; nothing can change either afterwards, and both end with the run. Every request
is decided by its target alone, told to the daemon, and only then acted on.

It never decides by what a header or an answer says, never dials an address that it did not check,
writes no file and starts no program.
"""
