"""MCP: the table of tools, their schemas, checked arguments, readable results and the server over the SDK.

Only `server`, `results`, `wire` and `sessions` import the SDK; the table and its schemas stay light.
"""
