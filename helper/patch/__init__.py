"""codespace-patch: plans and installs patches below one root, in a process of its own.

It speaks JSON lines on stdin and stdout (docs/helper-protocol.md), keeps a journal in the state
directory, and ends when its stdin does. It decides nothing: policy and limits arrive with `open`.
"""
