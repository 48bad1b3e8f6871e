"""The patch transaction from the daemon's side: the helper of a workspace, what it replies, and its journals."""
