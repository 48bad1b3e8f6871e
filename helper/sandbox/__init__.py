"""codespace-linux-sandbox: finds out what sandbox there is, prepares a run, and runs it.

A thin program over `codespace.sandbox`, for whoever cannot or will not use the module in-process.
"""
