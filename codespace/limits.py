"""Every number of the program, its unit in its name, its reason below it. Sorted by room."""

from __future__ import annotations

from typing import Final

# --- store and machines ---
RECORD_SECONDS: Final = 10.0
# Longest wait for one recorded step; SQLite's own busy timeout ends well before it.
STORE_BUSY_SECONDS: Final = 5.0
# How long SQLite waits for another daemon's write; a write takes milliseconds.
STORE_WAIT_SECONDS: Final = 7.0
# Longest life of one store call, waiting in line included; what is not committed by then is rolled back.
STORE_GRACE_SECONDS: Final = 2.0
# For a commit that had begun by then, which cannot be stopped; RECORD_SECONDS is longer than both together.
LOOK_SECONDS: Final = 2.0
# For reading back what is recorded after a write of unknown outcome.
RECORD_RETRY_SECONDS: Final = 1.0
# Between two tries to record what happened while the database was away; a full disk takes a person to clear.
SETTLE_PAUSE_SECONDS: Final = 60.0
# Longest pause between two tries to settle what a fault of this daemon left; the first comes after a second.
NEIGHBOURS_SECONDS: Final = 60.0
# Between two looks for daemons of the same database that died: what they left must not wait for a next start.
SCRUB_RETRY_SECONDS: Final = 0.2
# Between two tries to cut the database's log, which a reader keeps for milliseconds.
SCRUB_PATIENCE_SECONDS: Final = 3.0
# How long a command of the operator's waits for readers of the log it cuts; a daemon goes on trying.
AUDIT_PROBLEMS: Final = 20
# `audit verify` names so many faults and counts the rest; a person needs the first ones.
DOCTOR_ROWS: Final = 100_000
# Newest rows of each table that `doctor` reads as a daemon would: a second's work, and mostly all there are.
LIST_ROWS: Final = 1000
# Most operations of one listing; far over what a person reads.
LIST_CHARACTERS: Final = 64 * 1_048_576
# And most names and hashes of files in it: a patch may have 15 MB of them, and a thousand such would not fit in memory.

# --- requests ---
PATCH_WAIT_SECONDS: Final = 2.0
# How long a patch waits behind another patch before WORKSPACE_BUSY.
LOCK_RETRY_SECONDS: Final = 0.02
# Between two looks at a root that another daemon has locked; a patch takes a few milliseconds.
LOCK_SECONDS: Final = 10.0
# For opening and locking a root, which takes microseconds: a hung filesystem must not hang the caller, or a start.
VERB_SECONDS: Final = 180.0
# Longest any verb of the runner is waited for while a root is held: each ends itself well before, repeats included.
DECISION_LOOK_SECONDS: Final = 0.2
# Between two looks at a hold that is waited for, or at the database for who watches it: another daemon or the
# command line may decide at any time, and a person who just did looks at the other window.
WAIT_SECONDS_MAXIMUM: Final = 50.0
# Clients cut calls at about 60 s; a long poll must end before that.
WAIT_SECONDS_DEFAULT: Final = 10.0
# Enough for most short commands to end inside one call.
PROGRESS_INTERVAL_SECONDS: Final = 5.0
# Between two progress notifications of one long wait.
OPERATION_KEY_CHARACTERS: Final = 200
# From the contract.

# --- files ---
READ_BYTES: Final = 1_048_576
# Most content of one read: about 250,000 tokens, more than a model wants at once.
FILE_BYTES: Final = 256 * 1_048_576
# Largest file that is hashed and patched whole.
READ_MANY_PATHS: Final = 50
# From the contract.
READ_MANY_SECONDS: Final = 20.0
# After it the rest of a read_many is refused: 50 of the largest files would take minutes to hash.
READ_SECONDS: Final = 20.0
# Longest read or hash: 256 MiB takes a second; a hung network filesystem must not hang the caller.
LEASE_SECONDS: Final = 1.0
# How long a program may take to let go of a file that it has a lease on (Samba, NFS servers); it takes milliseconds.
READS_AT_ONCE: Final = 8
# Threads that read or hash in one root; more only fight for the disk.
SEARCH_SECONDS: Final = 8.0
# After it a find or search gives what it has; well before clients cut a call.
SEARCH_LAST_SECONDS: Final = 1.0
# Of those, kept for searching what a slow walk had come to.
SEARCH_TEXT_SECONDS: Final = 7.0
# Of those, kept for a search without files that have a NUL byte, where one that looks into them too has not ended
# before: gigabytes of images, of which ripgrep takes one or less in a second, must not make every search slow.
SEARCH_BINARY_BYTES: Final = 64 * 1_048_576
# Largest binary file that is searched on a descriptor, where ripgrep cannot be told to pass over such files.
SEARCH_HEAD_BYTES: Final = 65_536
# What is looked at of a larger one for a NUL byte: as much as ripgrep itself reads first.
SEARCH_NAMED_FILES: Final = 3
# Most files that a note of a search names; the others are counted.
SEARCHES_AT_ONCE: Final = 4
# In one root. Each is a process with a thread for every core.
SEARCH_STALL_SECONDS: Final = 1.0
# A ripgrep whose threads have all slept for so long has opened what never answers (a FIFO called .gitignore).
SEARCH_OUTPUT_BYTES: Final = 16 * 1_048_576
# Most that is taken from ripgrep of wanted files for one call; parsing it takes half a second.
SEARCH_ANSWER_BYTES: Final = 1_048_576
# Most that the matches of one answer hold, as JSON: as one read. With as many and as much context as a caller may ask
# for it would be forty times that.
SEARCH_MATCHES: Final = 20_000
# Most matches sorted for one answer; a pattern that matches everything ends here.
SEARCH_LINE_CHARACTERS: Final = 500
# Most of one line that a match shows: a minified file is one line.
SEARCH_MEMORY_BYTES: Final = 1_073_741_824
# Most memory of one ripgrep: it holds a whole line, and a file can be one line.
SEARCH_UNBOUNDED_SECONDS: Final = 0.02
# Before its limits are set: most searches are over by then, and none can have grown large.
SEARCH_PATTERN_CHARACTERS: Final = 10_000
# Longest pattern, glob or query that the runner takes (callers: TEXT_CHARACTERS); one argument of a program is limited
# to 131,072 bytes.
SEARCH_CONTEXT_LINES: Final = 50
# Most lines before and after a match that the runner gives (callers: CONTEXT_LINES_MAXIMUM).
FIND_PATHS: Final = 200_000
# Most names kept for one find, of those that are wanted; more of them give a partial answer.
SANDBOX_PROBE_SECONDS: Final = 10.0
# A bubblewrap takes 6 ms, and 11 s on a machine that is full of spinners: over this nothing is concluded.
SANDBOX_RETRY_SECONDS: Final = 30.0
# How long a passing failure of that probe stands before it is tried again.
REAP_SECONDS: Final = 2.0
# Between SIGKILL and giving up on a child that the kernel does not let go.

# --- patches ---
PATCH_BYTES: Final = 8 * 1_048_576
# Largest patch text; far over what a model writes in one call.
PATCH_OPERATIONS: Final = 2000
# Most file headers in one patch; a hostile one must not fill a disk with small files.
PATCH_TREE_BYTES: Final = 512 * 1_048_576
# Most bytes that one plan reads, and most that it writes: two whole files of the largest size.
PLANS_HELD: Final = 8
# Plans that a helper keeps in memory at once; the oldest that was not staged goes first.
PLANS_HELD_BYTES: Final = 256 * 1_048_576
# And their contents together, the latest plan aside.
DIFF_BYTES: Final = 65_536
# Most of a diff in a result: about 16,000 tokens.
DIFF_WHOLE_BYTES: Final = 32 * 1_048_576
# Most of a diff that is kept for people who decide; one that is larger nobody reads.
DIFF_PAGE_BYTES: Final = 65_536
# One page of it.
RESTORE_TRIES: Final = 50
# To reach a file whose directory somebody swaps at the same moment; each takes microseconds.
RESTORE_WAIT_SECONDS: Final = 1.0
# How long one verb goes on so in all, with pauses: whoever swaps the directory may not have got the CPU.
STRAYS_SECONDS: Final = 5.0
# Longest look for staged files whose directory was moved; they are hidden from every listing anyway.
STRAYS_ENTRIES: Final = 200_000
# And most names looked at.
HELPER_DESCRIPTORS: Final = 1024
# Most open files of a patch helper; a patch holds some 70 at once.
HELPER_MEMORY_BYTES: Final = 6 * 1_073_741_824
# Most address space: twice the trees of a plan with their lines, and the plans that are held.
PLACE_SECONDS: Final = 10.0
# Longest placing of chunks; ends well inside PLAN_SECONDS, so that the helper answers and lives.
PLAN_SECONDS: Final = 20.0
# Deadline of `plan`: reading half a gigabyte, placing, and the diff.
STAGE_SECONDS: Final = 30.0
# Deadline of `stage`: half a gigabyte written twice and flushed on a slow disk.
INSTALL_SECONDS: Final = 30.0
# Deadline of `install`: renames, each file hashed again.
VERIFY_SECONDS: Final = 30.0
# Deadline of `verify`: each file hashed again.
RESTORE_SECONDS: Final = 30.0
# Deadline of `restore`: as install.
FINISH_SECONDS: Final = 30.0
# Deadline of `finish`: each file that was set aside is hashed again.
SETTLE_SECONDS: Final = 60.0
# Deadline of `settle`: a look at everything, then perhaps a restore.
HELPER_START_SECONDS: Final = 10.0
# From spawning a helper to its first answer, on a loaded machine.
HELPER_STOP_SECONDS: Final = 2.0
# How long a helper may take to end after its stdin is closed, and again after SIGKILL.
HELPER_LINE_BYTES: Final = 64 * 1_048_576
# Longest line on the helper's pipes: the largest patch with every character escaped, and room.
HELPER_PIPE_BYTES: Final = 1_048_576
# What the pipe to a helper takes at once, where the kernel gives as much: most patches need no second turn.
HELPER_SPARE_BYTES: Final = 16 * 1_048_576
# How much freed memory a helper keeps for its next texts: to get it anew is a tenth of what a patch of 1 MB takes.
HELPER_STDERR_BYTES: Final = 8192
# Last bytes of a helper's stderr that are kept for the log.
JOURNAL_SMALL_BYTES: Final = 65_536
# Bytes before of one file that go into the manifest itself, which saves making a file and waiting for it.
JOURNAL_INLINE_BYTES: Final = 1_048_576
# And of all such files of a patch together: with 200 of them, as many files less to make.
JOURNAL_LOCK_SECONDS: Final = 2.0
# How long a helper waits for the one before it to be gone.
PATCH_LINES: Final = 500_000
# Most lines of a patch text: parsing costs about a microsecond a line; real text of PATCH_BYTES has half as many.
PATCH_DEPTH_EFFORT: Final = 12_000_000
# Directories above all paths of a patch, each counted with its depth and 80 for itself: each is looked at several
# times. 2000 files 40 directories deep are under it; 7 s at most.
PATCH_FILE_LINES: Final = 4_000_000
# Most lines of a file that chunks are placed in; each costs about 100 bytes of memory.
PATCH_EFFORT: Final = 100_000_000
# Line comparisons (about 10 ns each) that placing one patch may cost; ordinary ones need under a million.
PATCH_NOTES: Final = 10
# Most chunks of a patch of which it is told how they were placed; behind them the others are counted.
PATCH_NOTES_EFFORT: Final = 1_000_000
# Line comparisons of a patch to see whether its chunks have other places too; past it that is not told.
PATCH_PLACES: Final = 100
# Most places of a chunk that are counted.
DIFF_EFFORT: Final = 200_000
# Line comparisons for a diff whose edits are not known from the patch; past it one block replaces another.

TIDY_SECONDS: Final = 32.0
# For a whole `finish` behind a patch, its helper's deadline included; it takes a few unlinks.
FORGET_SECONDS: Final = 2.0
# For dropping a plan behind an answer; a stop waits for requests, and plans that are not dropped are bounded anyhow.
TIDY_TRIES: Final = 5
# How often that is tried again, a second apart: a helper that dies each time will not do it the sixth time.

# --- processes ---
TIMEOUT_SECONDS: Final = 600.0
# A command's time limit where neither operator nor caller says otherwise.
MAX_TIMEOUT_SECONDS: Final = 3600.0
# The longest that a caller may ask for unless the operator allows more.
OUTPUT_RING_BYTES: Final = 262_144
# Output kept in memory for each process.
OUTPUT_CHUNK_BYTES: Final = 65_536
# Most output of one read_process answer.
OUTPUT_PAUSE_SECONDS: Final = 0.15
# No output for this long, and what came in a row is one answer: a step of a build, what a prompt says.
OUTPUT_STEP_SECONDS: Final = 0.05
# Between two looks at a command that writes byte for byte; each look reads what one answer takes.
OUTPUT_GATHER_SECONDS: Final = 5.0
# Most that an answer waits for a pause: a command that writes all the time is still seen to move.
OUTPUT_READ_BYTES: Final = 262_144
# Most output of one answer of the runner, from which the gateway may cut several.
OUTPUT_STRANGE_BYTES: Final = 16
# Bytes that are no UTF-8 and zeros in an answer that is text all the same, however short: a name or two in Latin-1.
OUTPUT_STRANGE_PERCENT: Final = 10
# Where they are more than this part of it too, it is base64. A log in Latin-1 has 5; a program, an image, an archive
# and a database have 25 and more in nearly every answer.
COMMAND_SHOWN_CHARACTERS: Final = 2_048
# Most of a command in a list of processes, which may have hundreds; a script in an argument can be megabytes.
COMMAND_ITEMS: Final = 4096
# From the contract.
CORE_BYTES: Final = 1
# Of a core file: the one limit under which the kernel also starts no program that takes cores (systemd-coredump,
# apport); 0 is none for such. It is too little for a file.
CPU_HARD_SECONDS: Final = 5
# Of processor time: between SIGXCPU at limits.cpu_seconds and SIGKILL, for a program that catches it.
GRACE_SECONDS: Final = 2.0
# Between SIGTERM and SIGKILL.
RETENTION_SECONDS: Final = 3600.0
# How long an ended process stays readable.
RETAINED_PROCESSES: Final = 128
# Most ended processes that are kept, the oldest go first: bounds their output in memory to some 64 MiB.
PROCESSES_SHOWN: Final = 20
# Most ended processes in the text of a list, some 200 bytes each; the structure has all.
ENVIRONMENT_VARIABLES: Final = 256
# Most variables of one call; a desktop session has about 60.
ARGUMENT_BYTES: Final = 6 * 1_048_576
# Most bytes of argv, and of env, that any Linux takes; what is over its own limit is told by execve.
SPAWN_THREADS: Final = 4
# Threads that look for commands in one root, and those that make what starts need in all; each takes milliseconds.
REMOVAL_THREADS: Final = 2
# Private homes that are removed at once; a huge one must not keep commands from starting.
THREAD_RETRY_SECONDS: Final = 0.1
# Between two tries to get a thread for what a running command needs, while its account or container has no more.
WATCH_RETRY_SECONDS: Final = 0.05
# Between two looks at a descriptor that cannot be watched, while the account has no more watches of epoll.
HASH_THREADS: Final = 2
# Programs that are hashed for holds at once in one root.
STDIN_BYTES: Final = 8 * 1_048_576
# Most bytes for stdin in one call; they wait in memory until the process reads them.
STDIN_SECONDS: Final = 10.0
# How long one write_stdin waits for a process that does not read; it then says how much was taken.
STDIO_PIPE_BYTES: Final = 1_048_576
# Size asked for each pipe of the stdio wire, the most that any account may have: a page of 1 MB goes over in two turns
# of both sides and not in thirty.
PIPE_BYTES: Final = 262_144
# Size asked for each output pipe: fewer turns of the loop under a flood. The kernel's default where refused.
PIPE_READ_BYTES: Final = 65_536
# One read from an output pipe.
PIPE_READS: Final = 4
# Reads in a row before others have their turn.
SPOOL_SEGMENTS: Final = 16
# Files that one spool is at most: a tail is lost in steps of a sixteenth of the limit.
SPOOL_HEAD_SEGMENTS: Final = 1
# Of those, for the head: how it began is told in fewer words than how it ended.
SPOOLS_KEPT: Final = 4_096
# Most spools of ended processes: each is a folder and a file at least, however little it holds.
SPOOL_LEAST_BYTES: Final = 4_096
# A smaller limit of a spool means none: it would be headers.
SPOOL_PENDING_BYTES: Final = 4 * 1_048_576
# Output that waits in memory to be written to the head of a spool; at this the process waits, as for a full pipe.
SPOOL_FLOOD_BYTES: Final = 1_048_576
# Behind the head: over this the older half of what waits is dropped. Small, so that it stays in the processor's cache.
SPOOL_CALM_SECONDS: Final = 0.1
# How long a flood must have calmed before its output is written again.
SPOOL_STALL_SECONDS: Final = 5.0
# Longest write to a spool; a disk that takes longer hangs, and must not hold up the process.
SPOOL_THREADS: Final = 4
# Spools that are written or read at once.
SPOOL_SWEEP_SECONDS: Final = 600.0
# Between two looks for spools that are past their retention.
SPOOL_READ_TRIES: Final = 5
# Reads of output that was given up while it was read, one after the other; then the answer comes from memory.
STOP_LOOK_SECONDS: Final = 0.25
# Between two looks for requests of other daemons to end a process, while one runs; a look takes 0.2 ms.
NEIGHBOUR_LOOK_SECONDS: Final = 0.1
# Between two looks at a process of another daemon while somebody waits for it.
TERMINAL_ROWS: Final = 24
# A terminal's size where the caller does not say: from the contract.
TERMINAL_COLS: Final = 80
# As above.
TERMINAL_SIDE_MAXIMUM: Final = 1_000
# Most rows, and most columns: some programs keep a cell in memory for each.
TERMINAL_HELD_READS: Final = 65_536
# Most reads from a terminal whose command has ended: the kernel keeps about 64 KiB for one, and each takes a byte.
SPAWN_SECONDS: Final = 10.0
# Longest start of one command, a hanging execve included; it takes milliseconds.
MONITOR_SECONDS: Final = 8.0
# For a monitor to take its order, which it does in a millisecond; inside SPAWN_SECONDS. Its keeper is replaced then.
SPAWN_LOOK_SECONDS: Final = 8.0
# Longest look for a program, or at what Landlock is to allow, of a disk that has to spin up too; inside SPAWN_SECONDS,
# so that a hung root is named.
END_SECONDS: Final = 5.0
# After SIGKILL: how long the tree may take to be gone; only an uninterruptible disk wait takes longer than a few ms.
DRAIN_SECONDS: Final = 1.0
# After the tree is gone: how long its pipes may stay open because an outsider holds them.
EXIT_NEWS_SECONDS: Final = 0.2
# After a broken stdin pipe or the end of output: how long the news of the exit may take, so that the answer has it.
STOP_GRACE_SECONDS: Final = 0.5
# Between SIGTERM and SIGKILL when the daemon stops; well inside STOP_SECONDS.
STOP_END_SECONDS: Final = 4.0
# All processes together, grace included, when the daemon stops; then the lifelines are cut.
KEEPER_END_SECONDS: Final = 2.0
# How long the keeper of the monitors may take to end before it is killed.
HOME_SECONDS: Final = 5.0
# Removing one private home at the end; what takes longer goes on in its thread or is swept at the next start.

# --- sandbox ---
SANDBOX_START_SECONDS: Final = 20.0
# From bubblewrap's start to the open gate; 10 ms as a rule, 11 s were seen on a machine full of spinners.
SANDBOX_SEAL_SECONDS: Final = 10.0
# For the look at what was mounted, and at the program inside; milliseconds, and longer where a filesystem hangs.
SANDBOX_WATCH_SECONDS: Final = 2.0
# Between two looks at what covers a run's protected and hidden places, where no change is told. One takes 0.1 ms.
PROBE_SWEEP_ENTRIES: Final = 10_000
# Most names of the temporary directory that a probe looks through for what a killed one left: ten milliseconds.
SANDBOX_SPAWN_SECONDS: Final = 40.0
# One start with its look at the workspace, which ends itself before, so that the caller learns which part was slow.
SANDBOX_SCAN_SECONDS: Final = 8.0
# Longest look at a workspace before a run: some two million entries.
SANDBOX_KEPT_ENTRIES: Final = 100_000
# Most that is kept of one look for the next one: some 25 MB, for the largest trees.
SANDBOX_KEPT_BYTES: Final = 32 * 1_048_576
# And most memory that its paths take, whose length commands choose.
SANDBOX_FOUND_BYTES: Final = 8 * 1_048_576
# Most memory that the paths of all that one look has found take: some fifty thousand, far over what can be mounted.
SANDBOX_LEFT_BYTES: Final = 64 * 1_048_576
# And those of directories that it has still to look into: half a million side by side.
SANDBOX_MEMORIES: Final = 16
# Looks that are kept, two for each workspace in which commands ran last.
SANDBOX_BINDS: Final = 400
# Most mounts of one run that a workspace's content asks for: each costs time, and bubblewrap has an end at some 3,000.
SANDBOX_BINDS_BYTES: Final = 524_288
# And most bytes of their paths: bubblewrap is told each twice, and has 2 MB with the command and its environment.
SANDBOX_PIDS: Final = 2_048
# Most processes and threads of one run where the operator says nothing: a large parallel build, not a fork bomb.
SANDBOX_PIDS_MINIMUM: Final = 301
# The kernel's smallest pid_max; a smaller limit needs a cgroup, or an account that is not root.
SANDBOX_TMP_BYTES: Final = 1024 * 1_048_576
# Size of /tmp, of /dev/shm and of the home, each, where the operator says nothing. It is memory.
SANDBOX_INFO_BYTES: Final = 4_096
# Most of what bubblewrap says of a sandbox; 150 bytes as a rule.
SANDBOX_INDEX_BYTES: Final = 64 * 1_048_576
# Largest git index that is looked through for submodules: half a million files.
SANDBOX_PATH_BYTES: Final = 4_000
# Longest name of a mount: what the kernel takes, less the few bytes that bubblewrap puts before it. Commands can make
# deeper trees; what must be protected there is with the directory above it.
SANDBOX_GIT_PATH_BYTES: Final = 512
# Room for what is mounted in a git directory: `worktrees`, a name, and a file in it.
SANDBOX_ETC_SECONDS: Final = 30.0
# How long a look at /etc, and at git's configuration outside of workspaces, stands before it is looked at again.
SANDBOX_ACCOUNT_SECONDS: Final = 2.0
# For a look at git's configuration outside of workspaces, which takes a millisecond: a hung home must keep no run.
SANDBOX_COMPLAINT_BYTES: Final = 4_096
# Most of bubblewrap's own complaint that is kept.
SANDBOX_PLAN_BYTES: Final = 16 * 1_048_576
# Largest plan file that is read.
SANDBOX_PLAN_SECONDS: Final = 60.0
# A plan is run at once or never: what it was made from changes.
SANDBOX_SHOWN: Final = 10
# Names of planted files in a note; a person needs the first ones.
HINT_BYTES: Final = 16_384
# The end of a command's output that is looked through for well-known words of failure.
SANDBOX_UNSURE_SECONDS: Final = 5.0
# How long a probe that concluded nothing stands before it is tried again.
HARD_LINK_SECONDS: Final = 30.0
# Longest count of files with names outside the root, at the daemon's start: some million entries, at its pace.
HARD_LINK_ENTRIES: Final = 2_000_000
# And the most entries, where nobody waits for it.
HARD_LINK_BATCH: Final = 64
# Entries between two pauses of it: 0.2 ms, for which the event loop may have to wait.
HARD_LINK_PAUSE_SECONDS: Final = 0.001
# One pause: it has a fifth of one processor at most.
SANDBOX_CLOSING_SECONDS: Final = 0.5
# For a bubblewrap that has closed its descriptors to end by itself, so that its exit code is known.
SANDBOX_ENTER_SECONDS: Final = 5.0
# For a child that enters a sandbox's namespaces; it takes 3 ms.
SANDBOX_END_SECONDS: Final = 5.0
# After SIGKILL: how long the last process of a sandbox may take to be gone.

# --- worker ---
WORKER_FRAME_BYTES: Final = 64 * 1_048_576
# Longest frame on the worker's socket: the largest patch with every character escaped, and room.
WORKER_ASIDE_CHARACTERS: Final = 2_048
# Texts from here on cross beside the JSON of their message: escaping and reading 64 KiB takes 0.35 ms, copying nothing.
WORKER_HELLO_BYTES: Final = 65_536
# Longest frame before both sides have said who they are.
WORKER_START_SECONDS: Final = 20.0
# From starting the worker to its hello: 0.4 s as a rule, imports on a loaded machine and the sandbox's sweep included.
WORKER_HELLO_SECONDS: Final = 10.0
# Of those, for the hello of who has connected.
WORKER_FRAME_SECONDS: Final = 30.0
# From the first byte of a frame to its last; the largest takes 0.1 s.
WORKER_SEND_SECONDS: Final = 30.0
# How long a side may take nothing while something waits for it.
WORKER_OUTBOX_BYTES: Final = 4 * 1_048_576
# Over this much that waits to be sent, nobody adds to it.
WORKER_READ_BYTES: Final = 262_144
# One read from the socket: what its buffer holds.
WORKER_AHEAD_PAGES: Final = 4
# Pages of an ended process's output that are asked for before they are wanted, of a client that reads on.
WORKER_AHEAD_READERS: Final = 8
# And of how many clients that read on; the oldest are dropped.
WORKER_AHEAD_SECONDS: Final = 2.0
# And how long one may wait to be wanted; then it is asked for anew, as spools are given up meanwhile.
WORKER_VERB_SECONDS: Final = 200.0
# A worker that has not answered a bounded verb by then hangs: each ends itself well before (VERB_SECONDS).
WORKER_CANCEL_SECONDS: Final = 120.0
# And after the verb was cancelled: the longest that a cancelled verb still waits for what is on disk.
WORKER_LOOK_SECONDS: Final = 1.0
# Between two looks for verbs past those, while any is under way.
WORKER_NEWS_SECONDS: Final = 0.05
# Between two events that tell how much a process has written: a flood is no flood of events.
WORKER_STATE_SECONDS: Final = 1.0
# Between two looks at a process that writes nothing, for what no event tells: the kernel only counts some of it.
WORKER_STOP_SECONDS: Final = 12.0
# For a worker to end its processes and helpers in order (STOP_END_SECONDS and theirs); then it is killed.
WORKER_TREES_SECONDS: Final = 5.0
# After the end of a worker, for what it had started to be gone; its monitors kill within milliseconds.
WORKER_TOTALS_SECONDS: Final = 2.0
# To look how much of what its processes wrote lies on disk, some milliseconds; then what was told last is what counts.
WORKER_LOG_BYTES: Final = 65_536
# Longest line of a worker's log that is passed on.

# --- approvals ---
APPROVAL_EXPIRY_SECONDS: Final = 900.0
# From the contract.
HOLD_DIFF_BYTES: Final = 1_048_576
# Most of a diff that is held for the operator: some 20,000 lines, which nobody decides on in one go.
HOLD_TEXTS_BYTES: Final = 1_048_576
# And of everything else that a hold shows together (a command, its variables, its input), for the same reason.
HOLD_LISTED_CHARACTERS: Final = 65_536
# Most of what a hold shows that a list of holds has whole; a longer one is looked at by itself.
HOLDS_WAITING: Final = 200
# Most holds of one workspace that wait or are granted: an agent must fill neither the operator's list nor the disk.
HOLDS_WAITING_BYTES: Final = 32 * 1_048_576
# And most that they hold and show together, where there is more than one: a list looks through it, at some 50 MB a
# second, and nothing else is read from the database meanwhile.
HOLD_SWEEP_SECONDS: Final = 5.0
# Between two looks for holds and grants whose time is over: how much longer a body may lie there.
GRANT_SECONDS_MAXIMUM: Final = 7 * 86_400.0
# Longest scoped grant: what is wanted for longer belongs into the configuration.

# --- works ---
WORK_TITLE_CHARACTERS: Final = 200
# One line for a person; what the work is about stands in the conversation.
WORKS_OPEN: Final = 100
# Most works of one workspace that are not closed: an agent must not fill the operator's list.
INTENT_TEXT_CHARACTERS: Final = 20_000
# Longest text of an intent: several pages; more belongs into a file of the workspace.
INTENT_NOTE_CHARACTERS: Final = 4000
# Longest note of an agent on how an intent ended.
INTENTS_WAITING: Final = 200
# Most drafts and queued intents of one work; far over what a person keeps in mind.
INBOX_BODY_BYTES: Final = 262_144
# Largest request body of the inbox: the longest text with every character escaped, and room.

# --- start and stop ---
JOURNAL_AGE_SECONDS: Final = 86_400.0
# A patch that was cut off longer ago is not put back without the operator: people have worked on since.
SETTLE_AGAIN_SECONDS: Final = 30.0
# Between two tries to settle what another daemon left in a root that patches go on in.
PRUNE_SECONDS: Final = 600.0
# Between two looks at whether snapshots are too old or too many.
RECOVERY_SECONDS: Final = 20.0
# For settling what dead daemons left; the doors open after it, whatever is left.
STOP_SECONDS: Final = 10.0
# For processes to end and patches to finish once the doors are closed.
GOODBYE_SECONDS: Final = 5.0
# For recording the end of a daemon, a wait for another daemon's write included. Work that was cut off takes some
# seconds before it, and the watchdog comes behind both.
WATCHDOG_SECONDS: Final = 25.0
# The hard deadline of a whole stop, doors and helpers included; the process is ended after it.

# --- settings ---
HTTP_PORT: Final = 8787
# From the contract.
CONFIG_BYTES: Final = 1_048_576
# Largest configuration file that is read: a thousand workspaces fit; a file that is not one is refused unread.
ROOT_ANSWER_SECONDS: Final = 10.0
# For a look at a root or a readable path at the start, which takes microseconds: a hung filesystem must be told.
SETTING_MAXIMUM: Final = 2**53
# Largest whole number of a setting: 8 PiB. The kernel's own limits end at 2**63, JSON's exact numbers here.
SETTING_SECONDS_MAXIMUM: Final = 3_153_600_000.0
# Longest time of a setting: a hundred years, which every calendar can still say.
PIDS_MAXIMUM: Final = 4_194_304
# Most processes that a setting may allow: the kernel refuses a cgroup more (PID_MAX_LIMIT).
SNAPSHOT_BYTES: Final = 1024 * 1_048_576
# Most bytes of snapshots kept for undo: a thousand patches of a megabyte.
SNAPSHOT_AGE_SECONDS: Final = 30 * 86_400.0
# How long a snapshot is kept: a month covers "what did it do before my holiday".
SPOOL_BYTES: Final = 1024 * 1_048_576
# Most bytes of spooled output of all processes; a share of a laptop's disk that nobody misses.
PROCESS_SPOOL_BYTES: Final = 64 * 1_048_576
# Most bytes of spooled output of one process: a long build's log fits several times.

# --- log ---
LOG_TEXT_CHARACTERS: Final = 4_096
# Longest text of one field; what is longer is content, which does not belong into a log.
LOG_DEPTH: Final = 4
# Deepest nesting that is shown; bounds the work that a hostile value can cause.
LOG_ITEMS: Final = 64
# Most items of one collection that are shown, for the same reason.
LOG_WRITE_BYTES: Final = 4_096
# PIPE_BUF: a pipe that polls writable takes this much without blocking.

# --- command line ---
USER_FILE_BYTES: Final = 64 * 1_048_576
# Largest file of a client's that an entry is added to: one that keeps its history there has some megabytes.
DESCRIPTORS: Final = 64
# A command begins with so many to spare or not at all: a daemon that answers one client and runs one command in its
# sandbox takes 45, and each command more takes some; the usual limit of an account is 1024.
INIT_ENTRIES: Final = 20_000
# Most directory entries that `init` looks at when it looks for secrets; a second at most.
INIT_DEPTH: Final = 6
# Deepest directory that `init` looks into; secrets sit near the top.
INIT_PATTERNS: Final = 24
# Most patterns for `.env.*` before `init` says them with fewer: what a person still reads. Of all others there are few.

# --- network door ---
PROXY_HEAD_BYTES: Final = 65_536
# Longest head of a request or an answer; browsers and servers stop at 8 to 64 KiB.
PROXY_HEAD_SECONDS: Final = 10.0
# For a whole head to arrive from a program on the same machine, and for a refusal to be taken by it.
PROXY_HELLO_BYTES: Final = 32_768
# Longest ClientHello: about 500 bytes, 2,000 with post-quantum keys, and room.
PROXY_HELLO_SECONDS: Final = 10.0
# For a ClientHello to arrive once the tunnel is open.
PROXY_RESOLVE_SECONDS: Final = 10.0
# Longest look-up of one name; glibc itself gives up after 5 s with each name server.
PROXY_LOOKUPS: Final = 8
# Look-ups at once; one that hangs keeps its place until the resolver gives up.
PROXY_DIAL_SECONDS: Final = 10.0
# For a connection to any of the addresses of a name.
PROXY_DIAL_EACH_SECONDS: Final = 4.0
# Of those, for one address: a dead one must not use up the time of the next.
PROXY_ADDRESSES: Final = 16
# Most addresses of one name that are checked and tried; large services have eight.
PROXY_IDLE_SECONDS: Final = 600.0
# A connection on which no byte moves either way ends after this: a long answer may be thought about for minutes.
PROXY_HALF_SECONDS: Final = 60.0
# As before, once one side has said that it will send no more.
PROXY_BLOCK_BYTES: Final = 65_536
# Most bytes in flight in one direction of a connection.
PROXY_CONNECTIONS: Final = 1000
# Connections of one run at once; one more gets a 503. `npm install` opens some 50.
PROXY_TELL_SECONDS: Final = 10.0
# How long the daemon may take to read a decision; past it the door closes: what cannot be recorded does not happen.
PROXY_START_SECONDS: Final = 10.0
# From asking for a door to its being open, the keeper's own start (0.3 s) on a loaded machine included.
PROXY_END_SECONDS: Final = 2.0
# For a door to say its last counts at the end of a run, and for the keeper to end at the end of the daemon.
PROXY_MEMORY_BYTES: Final = 1_073_741_824
# Most data of one door: a thousand connections with full buffers are about 200 MB.
PROXY_NOTES: Final = 5
# Network decisions that a result explains in words; all that are kept stand in its list.
PROXY_DECISIONS: Final = 200
# Different decisions of one run that are kept for its result; the rest is counted.
TRAIL_SECONDS: Final = 1.0
# Between two rows of the audit that tell of one run's network decisions while it goes on; the first waits for nothing.
LISTENER_SECONDS: Final = 2.0
# For the child that binds a socket in another network namespace; it takes 2 ms.
LISTENER_BACKLOG: Final = 128
# Connections that may wait to be taken.

# --- doors ---
REQUEST_BYTES: Final = 32 * 1_048_576
# Largest single message: a patch of PATCH_BYTES whose every line break and quote is escaped fits twice.
MESSAGE_VALUES: Final = 50_000
# Most commas and brackets of one message: one stands before each value, which is an object of the reader's. It takes a
# tenth of a second of its time, where 32 MiB of empty lists took half a minute and 2 GiB. The largest call has a tenth
# of them: a command of COMMAND_ITEMS.
CONCURRENT_CALLS: Final = 256
# Most tool calls under way at once through one door: far over a busy agent, far under what memory allows.
UNKNOWN_ARGUMENTS: Final = 100
# Most unknown arguments that are compared with known names; more is no typing slip.
PATH_CHARACTERS: Final = 4_096
# PATH_MAX: no longer name can be opened.
TEXT_CHARACTERS: Final = 4_096
# Longest glob, query or pattern: longer ones are content, not questions.
COMMAND_ECHO_CHARACTERS: Final = 2_000
# Longest string command that is given back as a ready argv; a longer one is a script for a file.
ERROR_TEXT_CHARACTERS: Final = 8_192
# Longest single text in an error body.
SHOWN_NAME_CHARACTERS: Final = 120
# Longest outside name (a client, an argument) in a log line, a record or an error.
FIND_LIMIT: Final = 1_000
# Paths of one find where the caller does not say: a page that a model can read.
FIND_LIMIT_MAXIMUM: Final = 10_000
# Most paths of one find.
SEARCH_LIMIT: Final = 200
# Matches of one search where the caller does not say.
SEARCH_LIMIT_MAXIMUM: Final = 2_000
# Most matches of one search.
CURSOR_MAXIMUM: Final = 2**53 - 1
# Largest byte offset or line number that is looked at: what every JSON reader holds exactly.
REQUEST_SECONDS_MAXIMUM: Final = 30 * 86_400.0
# Longest time limit that is understood at all; the operator's own maximum is far below.
CONTEXT_LINES_MAXIMUM: Final = 20
# Most lines shown around a match; read shows more.
GRACE_SECONDS_MAXIMUM: Final = 30.0
# Longest grace that a caller may ask for: the call must end before its client gives up.
ASK_SECONDS: Final = 45.0
# How long a client's user may think about a hold before the call is answered without a decision: clients cut at 60.
PROGRESS_SECONDS: Final = 1.0
# Longest wait for one progress notification to be taken; it is news, not a result.
STDIO_CHUNK_BYTES: Final = 65_536
# One read from the client: the size of a pipe.
STDIO_UNANSWERED: Final = 2 * CONCURRENT_CALLS
# Most requests whose answers the client has not taken; more are not read. One that takes them never has so many.
STDIO_LOOK_SECONDS: Final = 0.5
# Between two looks whether a client that takes no answers has closed its end: no event tells that behind unread lines.
STDIO_FLUSH_SECONDS: Final = 0.3
# After end of input or a stop: how long answers under way may still be written. The end must come within a second.
HTTP_BODY_SECONDS: Final = 30.0
# Longest time for a whole request body to arrive; on one machine it takes milliseconds.
HTTP_BODY_FREE_BYTES: Final = 262_144
# What every request body may hold, whatever the others do: far over a usual call, 128 MiB for all connections together.
HTTP_BODIES_BYTES: Final = 268_435_456
# What all bodies hold beyond that while they arrive and are answered: eight of the largest. A client that had begun as
# many as there may be connections held 16 GiB.
HTTP_IDLE_SECONDS: Final = 15.0
# An idle kept-alive connection is closed after this.
HTTP_USER_TIMEOUT_SECONDS: Final = 5.0
# A peer that takes no byte of a pending answer for this long is cut by the kernel.
HTTP_FLUSH_SECONDS: Final = 1.0
# How long the last part of an answer is sent on though its request was cancelled; the step takes microseconds.
HTTP_DRAIN_SECONDS: Final = 2.0
# After a stop: how long answers under way may still be written before their connections are cut.
HTTP_SESSIONS: Final = 64
# Most MCP sessions at once; a desktop has a handful of clients. One more takes the place of the longest idle.
HTTP_SESSION_IDLE_SECONDS: Final = 1_800.0
# A session without a request or an open stream ends after this.
HTTP_CONNECTIONS: Final = 512
# Most connections at once: a call each, and a stream for each session. And no more than half of the files that can be
# open beyond DESCRIPTORS (480 of the 1024 that an account has as a rule): strangers, who come before any token is asked
# for, must leave some for commands and patches. One more takes the place of the longest stranger's; where all have
# shown a token, it is closed unserved.
HTTP_CONNECTIONS_LEAST: Final = 8
# Connections that there may be however few files can be open: what a client and a browser need.
HTTP_EVENT_BYTES: Final = 61_440
# Largest answer that is one event of a stream: simple clients take lines of 64 KiB, the official one events of 1 MiB.
HTTP_BACKLOG: Final = 100
# Connections that may wait to be accepted.
TOKEN_BYTES: Final = 32
# Random bytes of a generated token: 256 bits.
PUBLIC_TOKEN_CHARACTERS: Final = 16
# Least of a chosen token where others can connect: as random ones, more than can be tried over a network.

# --- console ---
CONSOLE_TICKET_SECONDS: Final = 120.0
# How long a sign-in link is good: a browser that starts cold, and a person who looks for the window.
CONSOLE_SESSION_SECONDS: Final = 43_200.0
# How long a browser stays signed in: a working day.
CONSOLE_SESSIONS: Final = 8
# Most browsers that are signed in at once.
CONSOLE_STREAMS: Final = 24
# Most event streams at once: a browser opens six connections to one host, so that this is some browsers full.
CONSOLE_FORM_BYTES: Final = 262_144
# Largest form: the longest text of an intent with every byte percent-encoded, as UTF-8.
CONSOLE_DIFF_LINES: Final = 400
# Lines of a diff on one page.
CONSOLE_ROWS: Final = 50
# Rows of what is over (decided holds, operations) on one page.
CONSOLE_SUMMARY_CHARACTERS: Final = 120
# Longest summary of a hold in a list; its own page shows the whole.
CONSOLE_EVENT_SECONDS: Final = 15.0
# Longest silence on an event stream: a comment is sent, which notices that the browser is gone.
