"""One find or search by ripgrep, in the sandbox that holds the root alone or on descriptors from `beneath`.

What comes back from the sandbox is looked at again: a hidden name, a git directory or a mount below
the root is never shown, whatever ripgrep was told to leave out, and wherever a name has led it: its
names are reached anew, and its lines must be those of the file that `beneath` opens under the name.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.beneath import GONE, STAGED_PREFIX, Entry, Root, showable
from codespace.contract import Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.runner.search import child
from codespace.runner.search.confinement import Confinement
from codespace.runner.search.ignores import Ignores
from codespace.runner.search.matches import Lines, Matches, has
from codespace.runner.search.names import Names
from codespace.runner.search.stopping import Stop
from codespace.sandbox import submounts

_BATCH: Final = min(512, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8, 32))
# Files handed to one ripgrep as descriptors: with all searches at once, half of what the process may have.
_COMMON: Final = ("--no-config", "--no-messages", "--color=never", "--no-mmap")
# Without mmap: a file that shrinks while it is mapped would kill ripgrep.
_NO_MEMORY: Final = (-signal.SIGABRT, 128 + signal.SIGABRT)
# How ripgrep ends at its memory limit, alone and told by bubblewrap; what it had found stands.
_MEMORY: Final = ("--regex-size-limit=32M", "--dfa-size-limit=64M")
_LETTERS: Final = re.compile(r"\[(?:[a-zA-Z0-9._~+=-](?!-)|0-9|a-z|A-Z)+\]")
# Between brackets, what nobody reads in another way: no class that is negated, no range that could run backwards.
_SPELT: Final = re.compile(r"[A-Za-z0-9._-]{0,24}")
# What is told to ripgrep of a directory's name: letters that nobody reads in another way, and few.
_SPELT_NAMES: Final = 16  # of one path
_CLOSED: Final = re.compile(rb"^rg: \./(.+?): [^:\n]+ \(os error \d+\)$", re.MULTILINE)
# How ripgrep tells of what it could not read. A name with a line end can say anything here: it is looked for.
_TREE: Final = ("--hidden", "--no-require-git", "--no-ignore-global", "--iglob=!.git", f"--glob=!{STAGED_PREFIX}*")


@dataclass(frozen=True, slots=True)
class Question:
    """A search as ripgrep takes it."""

    pattern: str
    literal: bool
    context_lines: int
    wanted: Callable[[str], bool] | None
    """Which paths; None for all."""
    prefilter: str | None
    """A glob for last names that lets through all that `wanted` does."""
    is_prefilter_all: bool = False
    """Whether it lets through nothing else."""
    most: int | None = None
    """Matching lines of one file that are enough: of a large one with a match in each line ripgrep would keep all."""

    def arguments(self) -> list[str]:
        told = ["--json", *_MEMORY, f"--context={self.context_lines}", f"--regexp={self.pattern}"]
        if _CARRIAGE_RETURN.search(self.pattern) is None:
            told.append("--crlf")  # `$` is before either kind of line end; ripgrep takes no pattern with \r then
        if self.most is not None:
            told.append(f"--max-count={self.most}")
        return [*told, "--fixed-strings"] if self.literal else told


_CARRIAGE_RETURN: Final = re.compile(r"\r|\\r|\\x0d|\\u0{2,6}d|\\[xu]\{0*d\}|cntrl", re.IGNORECASE)
"""A pattern that may mean one, in whatever spelling."""


class _Over(Exception):
    """The call was stopped, or its time is over."""


class Ripgrep:
    """One call's worth of work, in the thread that it belongs to.

    Args:
        stop: Ends it early.
        deadline: On time.monotonic(); what was found until then is the answer.
        below: The one directory that is looked through, with the same answer as by a look at all; `` for all.
    """

    def __init__(
        self,
        root: Root,
        workspace: Workspace,
        confinement: Confinement,
        stop: Stop,
        deadline: float,
        below: str = "",
    ) -> None:
        self.cut: str | None = None
        """Why it ended early: `time`, `size`."""
        self.unreadable = False
        """Whether something was left out because it could not be read."""
        self.closed: str | None = None
        """The path of the first such thing, where that is known."""
        self.is_text_only = False
        """Whether files with a NUL byte were passed over, for the sake of all others."""
        self.too_large: list[str] = []
        """Paths of binary files that were left out for their size."""
        self._root = root
        self._workspace = workspace
        self._confinement = confinement
        self._stop = stop
        self._deadline = deadline
        self._below = below

    def names(self, wanted: Callable[[str], bool] | None, *, include_ignored: bool) -> list[str]:
        """Return the paths of visible files that are wanted, sorted."""
        if self._confinement.kind == "bubblewrap":
            names = Names(lambda found: self._chosen(found, wanted))
            arguments = ["--files", "--null", *(("--no-ignore",) if include_ignored else ())]
            if self._in_sandbox(arguments, names.take, self._deadline):
                return self._reached(names.found)
        walked = (entry.path for entry in self._walk(self._deadline, include_ignored=include_ignored))
        return sorted(path for path in (filter(wanted, walked) if wanted else walked) if path not in self._mounts)

    def matches(self, question: Question) -> Matches:
        """Return the matches in visible files, unsorted.

        Raises: Refusal INVALID_ARGUMENT with ripgrep's own words about the pattern.
        """
        if self._confinement.kind == "bubblewrap":
            matches = self._matches_in_sandbox(question, binary=True)
            is_enough = self.cut == "size" and matches is not None and matches.are_enough(question.most)
            if matches is not None and self.cut is not None and not is_enough:
                # Files that are no text can hold gigabytes, and more matches than are taken from ripgrep.
                self.cut = None
                matches = self._matches_in_sandbox(question, binary=False)
                self.is_text_only = matches is not None and self.cut is None
            if matches is not None:
                is_of_wanted = question.wanted is None or question.is_prefilter_all
                is_of_visible = not self._mounts and all(map(_is_plain, self._workspace.hidden_paths))
                if self.cut is None and not (is_of_wanted and is_of_visible):
                    self._count(question, matches, may_stay=is_of_visible)
                return matches
        return self._matches_beneath(question)

    def _matches_in_sandbox(self, question: Question, *, binary: bool) -> Matches | None:
        """Search all files, in the time that leaves enough for doing without, or none with a NUL byte."""
        matches = Matches(self._named, question.context_lines, self._wanted_in(question))
        arguments = [*question.arguments(), *(("--binary",) if binary else ())]
        deadline = self._deadline - limits.SEARCH_TEXT_SECONDS * binary
        if question.prefilter is not None:
            arguments += [f"--type-add=wanted:{question.prefilter}", "--type=wanted"]
        if not self._in_sandbox(arguments, matches.take, deadline):
            return None
        if not binary:
            matches.cut_off()
        return matches

    def _count(self, question: Question, matches: Matches, *, may_stay: bool) -> None:
        """Have only the files that were asked for and may be seen count as searched: ripgrep opened others too.

        "Nothing found in 40,000 files" is no answer to a glob that is misspelt.

        Args:
            may_stay: Whether ripgrep's own count tells nothing of hidden files, and may stand where there is no other.
        """
        wanted = self.names(question.wanted, include_ignored=False)
        if self.cut is None or not may_stay:
            matches.files_searched = len(wanted)
        self.cut = None  # of the matches nothing is missing

    def is_visible(self, path: str) -> bool:
        """Return whether a name may be shown at all."""
        lowered = path.lower()
        git = ".git" in lowered and ".git" in lowered.split("/")
        return not git and not self._root.is_hidden(path)

    def _chosen(self, found: Iterable[str], wanted: Callable[[str], bool] | None) -> Iterator[str]:
        """Yield the names to be shown; a glob of many parts on many long names would take hours."""
        # What a slow tree gave until the deadline is still looked through.
        until = max(self._deadline, time.monotonic() + limits.SEARCH_LAST_SECONDS)
        with contextlib.suppress(_Over):
            for path in found:
                self._require_time(until)
                if (wanted is None or wanted(path)) and self.is_visible(path):
                    yield path

    def _reached(self, paths: Iterable[str]) -> list[str]:
        """Return those that are there, sorted: ripgrep lists by name, and may have followed a link to hidden ones."""
        below: dict[str, list[str]] = {}
        for path in paths:
            directory, slash, name = path.rpartition("/")
            below.setdefault(directory + slash, []).append(name)
        until = max(self._deadline, time.monotonic() + limits.SEARCH_LAST_SECONDS)
        reached: list[str] = []
        with contextlib.suppress(_Over):
            for directory, names in below.items():
                self._require_time(until)
                reached.extend(directory + name for name in self._present(directory.rstrip("/") or ".", names))
        return sorted(path for path in reached if path not in self._mounts)

    def _present(self, directory: str, names: Iterable[str]) -> Iterator[str]:
        try:
            held = self._root.open_listing(directory)
        except OSError as error:
            self._leave_out(directory, error)
            return
        try:
            for name in names:
                try:
                    if stat.S_ISREG(os.stat(name, dir_fd=held, follow_symlinks=False).st_mode):
                        yield name
                except OSError as error:
                    self._leave_out(f"{directory}/{name}".removeprefix("./"), error)
        finally:
            os.close(held)

    def _leave_out(self, path: str, error: OSError) -> None:
        if error.errno not in GONE:
            self.unreadable, self.closed = True, self.closed or path

    @functools.cached_property
    def _mounts(self) -> frozenset[str]:
        """What is mounted below the root and does not belong to it: a listing does not tell a file that is."""
        if self._workspace.allow_submounts:
            return frozenset()
        prefix = os.readlink(f"/proc/self/fd/{self._root.fd}").rstrip("/") + "/"
        points = (entry.point for entry in submounts.table())
        return frozenset(point.removeprefix(prefix) for point in points if point.startswith(prefix))

    def _require_time(self, deadline: float) -> None:
        if self._stop.said:
            raise _Over
        if time.monotonic() > deadline:
            self.cut = "time"
            raise _Over

    def _in_sandbox(self, arguments: Sequence[str], take: Callable[[bytes], bool], deadline: float) -> bool:
        """Run ripgrep on the root; return False where the answer must come without the sandbox this time."""
        tree = [*_TREE, *(f"--glob=!{glob}" for glob in self._workspace.hidden_paths if _is_plain(glob))]
        tree += _beside(self._below)
        if not self._workspace.allow_submounts:
            tree.append("--one-file-system")
        argv = self._confinement.argv(
            self._root.fd,
            [*_COMMON, "--messages", "--no-ignore-messages", *tree, *arguments, "--", "./"],
        )
        has_taken = False

        def take_on(block: bytes) -> bool:
            nonlocal has_taken
            has_taken = True
            return take(block)

        ending = self._run(argv, (self._root.fd,), take_on, deadline, limits.SEARCH_STALL_SECONDS)
        if ending.returncode in _NO_MEMORY and not has_taken:
            self.cut = None
            return False  # it may have come to an ignore file that is one huge line, before anything else
        if ending.cut == "stalled":
            return False  # it looks for ignore files by name alone; `beneath` opens regular files only
        if ending.returncode not in (0, 2) and ending.complaint.startswith(b"bwrap:"):
            return False
        if ending.returncode != 2 or not ending.complaint.startswith(b"rg: ./"):  # what is said of files is no refusal
            _check(ending)
        if ending.cut is None and ending.returncode == 2:
            named = (os.fsdecode(path) for path in _CLOSED.findall(ending.complaint))
            self.closed = next((path for path in named if self.is_visible(path) and self._root.reaches(path)), None)
            # Root without its capabilities may not read what belongs to others; on descriptors it may.
            self.unreadable = True
            return os.geteuid() != 0
        return True

    def _matches_beneath(self, question: Question) -> Matches:
        described: dict[str, str] = {}
        matches = Matches(lambda path, _: described.get(path), question.context_lines)
        batch: list[Entry] = []
        # A slow walk leaves time for a last search of what it came to.
        for entry in self._walk(self._deadline - limits.SEARCH_LAST_SECONDS, include_ignored=False):
            if question.wanted is None or question.wanted(entry.path):
                batch.append(entry)
            if len(batch) == _BATCH:
                self._search_batch(question, batch, described, matches)
                batch = []
                if self.cut is not None:
                    return matches
        self._search_batch(question, batch, described, matches)  # also where it is empty: the pattern may be wrong
        return matches

    def _search_batch(
        self, question: Question, batch: Sequence[Entry], described: dict[str, str], matches: Matches
    ) -> None:
        descriptors: list[int] = []
        searched = matches.files_searched
        described.clear()
        try:
            for entry in batch:
                descriptor = self._open(entry)
                if descriptor is not None:
                    descriptors.append(descriptor)
                    described[f"/proc/self/fd/{descriptor}"] = shown(entry.path)
            argv = [self._confinement.ripgrep, *_COMMON, "--no-ignore", *question.arguments(), "--"]
            ending = self._run([*argv, *(described or ("/dev/null",))], descriptors, matches.take, self._deadline)
            _check(ending)
            matches.cut_off()
            self.unreadable = self.unreadable or (ending.cut is None and ending.returncode == 2)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if not described:
            matches.files_searched = searched

    def _open(self, entry: Entry) -> int | None:
        """Open a file that the walk named, or leave it out: it may be gone, or out of reach, by now."""
        try:
            descriptor = self._root.open_entry(entry)
        except Refusal as refused:
            if refused.code == "FILE_OPERATION_FAILED":
                self.unreadable, self.closed = True, self.closed or entry.path
            return None
        if not _is_large_binary(descriptor):
            return descriptor
        os.close(descriptor)
        self.too_large.append(shown(entry.path))
        return None

    def _walk(self, deadline: float, *, include_ignored: bool) -> Iterator[Entry]:
        require_time = functools.partial(self._require_time, deadline)
        ignores = Ignores(self._root, require_time)

        def skip(entry: Entry) -> bool:
            require_time()  # here too: one directory can have any number of names, and each as many rules
            if entry.path != "." and not _leads(entry.path, self._below):
                return True
            return not self.is_visible(entry.path) or (not include_ignored and ignores.skips(entry))

        self.unreadable, self.closed = False, None
        walk = self._root.walk(skip=skip)
        with contextlib.suppress(_Over):
            for entry in walk:
                require_time()
                if entry.kind == "file":
                    yield entry
        if walk.closed:
            self.unreadable, self.closed = True, self.closed or walk.closed[0]

    def _run(
        self,
        argv: Sequence[str],
        fds: Sequence[int],
        take: Callable[[bytes], bool],
        deadline: float,
        stall_seconds: float = math.inf,
    ) -> child.Ending:
        try:
            ending = child.run(
                argv, fds=fds, take=take, stop=self._stop, deadline=deadline, stall_seconds=stall_seconds
            )
        except OSError as error:
            raise Refusal("FILE_OPERATION_FAILED", f"ripgrep could not be started: {error.strerror}.") from error
        if ending.cut == "time":
            self.cut = "time"
        elif ending.cut == "enough" or ending.returncode in _NO_MEMORY:
            self.cut = "size"
        return ending

    def _wanted_in(self, question: Question) -> Callable[[str], bool]:
        def wanted(path: str) -> bool:
            path = path.removeprefix("./")
            # For a costly glob, as ripgrep may have ended by now. What it said until the deadline is still looked at.
            if time.monotonic() > self._deadline + limits.SEARCH_LAST_SECONDS:
                self.cut = "time"
                return False
            return (question.wanted is None or question.wanted(path)) and self.is_visible(path)

        return wanted

    def _named(self, path: str, lines: Lines) -> str | None:
        path = path.removeprefix("./")
        return shown(path) if self._has(path, lines) else None

    def _has(self, path: str, lines: Lines) -> bool:
        """Return whether a file has these lines: ripgrep opens by name, and a link that was there led it elsewhere.

        One that was changed since, or swapped, counts as unreadable.
        """
        try:
            descriptor = self._root.open_entry(Entry(path, "file"))
        except Refusal as refused:
            self.unreadable = self.unreadable or refused.code == "FILE_OPERATION_FAILED"
            return False
        try:
            there = has(descriptor, lines)
        except OSError:
            there = False
        finally:
            os.close(descriptor)
        self.unreadable = self.unreadable or not there
        return there


def _leads(path: str, below: str) -> bool:
    """Return whether a path leads to a directory, or lies in it."""
    path, below = f"{path}/", f"{below}/" if below else ""
    return path.startswith(below) or below.startswith(path)


def _beside(below: str) -> Iterator[str]:
    """Yield arguments that keep ripgrep from what lies beside a directory, and beside each above it.

    Started in that directory it would take what a rule above it ignores.
    """
    above = "/"
    for name in below.split("/")[:_SPELT_NAMES] if below else ():
        spelt = _SPELT.match(name)
        told = spelt[0] if spelt else ""
        others = [f"{told[:number]}{end}" for number, letter in enumerate(told) for end in ("", f"[!{letter}]*")][1:]
        if told == name:
            others.append(f"{name}?*")
        if others:
            yield f"--glob=!{above}{{{','.join(others)}}}"
        if told != name:
            return
        above += f"{name}/"


def shown(path: str) -> str:
    """Return a path as a caller can get it: one that no caller could say is shown with escapes."""
    return path if showable(path) else display(path)


def _is_large_binary(descriptor: int) -> bool:
    if os.fstat(descriptor).st_size <= limits.SEARCH_BINARY_BYTES:
        return False
    with contextlib.suppress(OSError):  # ripgrep will see, and say that it could not read it
        return b"\0" in os.pread(descriptor, limits.SEARCH_HEAD_BYTES, 0)
    return False


def _is_plain(glob: str) -> bool:
    """Return whether ripgrep reads a hidden glob exactly as `beneath` does; the rest is left to the look at results."""
    rest = _LETTERS.sub("", glob)
    return not any(special in rest for special in "[]{}\\") and not glob.startswith("!")


def _check(ending: child.Ending) -> None:
    """Refuse where ripgrep did not do its work; a file that it could not read is no reason."""
    if ending.cut is not None or ending.returncode in (0, 1, *_NO_MEMORY):
        return
    told = ending.complaint.decode(errors="replace").split("\n\n")[0].strip().removeprefix("rg: ")
    if ending.returncode == 2 and not told:
        return
    if ending.returncode == 2:
        of_lines = 'literal "\\n"' in told  # as ripgrep calls a line break, whether it is escaped or not
        raise Refusal(
            "INVALID_ARGUMENT",
            f"ripgrep does not accept the pattern: {display(told, limit=1_000, newlines=True)}",
            next_step="A match is within one line: search for a part that stands in one, and read the lines around it."
            if of_lines
            else "Correct the pattern, or set `literal` to search for it as it is. It is matched within one line.",
        )
    raise Refusal("FILE_OPERATION_FAILED", f"ripgrep ended with {ending.returncode}: {display(told, limit=200)}")
