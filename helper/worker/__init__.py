"""The runner in a process of its own, which has none of the gateway's secrets.

It serves the verbs of `contract.Runner` on one private socket to the one process that started it. It
decides nothing and knows neither tokens nor configuration, database or holds.
"""
