"""Every number of the program, its unit in its name, its reason below it. Sorted by room."""

from __future__ import annotations

from typing import Final

# --- store and machines ---
RECORD_SECONDS: Final = 10.0
# Longest wait for one recorded step; SQLite's own busy timeout ends well before it.
STORE_BUSY_SECONDS: Final = 5.0
# How long SQLite waits for another daemon's write; a write takes milliseconds.

# --- requests ---
PATCH_WAIT_SECONDS: Final = 2.0
# How long a patch waits behind another patch before WORKSPACE_BUSY.
WAIT_SECONDS_MAXIMUM: Final = 50.0
# Clients cut calls at about 60 s; a long poll must end before that.
WAIT_SECONDS_DEFAULT: Final = 10.0
# Enough for most short commands to end inside one call.
OPERATION_KEY_CHARACTERS: Final = 200
# From the contract.

# --- files ---
READ_BYTES: Final = 1_048_576
# Most content of one read: about 250,000 tokens, more than a model wants at once.
FILE_BYTES: Final = 256 * 1_048_576
# Largest file that is hashed and patched whole.
READ_MANY_PATHS: Final = 50
# From the contract.

# --- patches ---
PATCH_BYTES: Final = 8 * 1_048_576
# Largest patch text; far over what a model writes in one call.

# --- processes ---
TIMEOUT_SECONDS: Final = 600.0
# A command's time limit where neither operator nor caller says otherwise.
MAX_TIMEOUT_SECONDS: Final = 3600.0
# The longest that a caller may ask for unless the operator allows more.
OUTPUT_RING_BYTES: Final = 262_144
# Output kept in memory for each process.
OUTPUT_CHUNK_BYTES: Final = 65_536
# Most output of one read_process answer.
COMMAND_ITEMS: Final = 4096
# From the contract.
GRACE_SECONDS: Final = 2.0
# Between SIGTERM and SIGKILL.
RETENTION_SECONDS: Final = 3600.0
# How long an ended process stays readable.

# --- approvals ---
APPROVAL_EXPIRY_SECONDS: Final = 900.0
# From the contract.

# --- start and stop ---
STOP_SECONDS: Final = 10.0
# The hard deadline of an ordered stop; a watchdog ends the process after it.
