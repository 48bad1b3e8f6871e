"""The HTTP door: a guard before everything, MCP at /mcp, and a sign of life at /healthz."""
