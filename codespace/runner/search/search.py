"""`find` and `search`: names and lines below a root, by ripgrep, off the event loop, always bounded."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from itertools import takewhile
from typing import Final, TypeVar

import trio

from codespace import limits
from codespace.beneath import Root
from codespace.contract import FindResult, Match, SearchResult, Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.runner.roots import Roots
from codespace.runner.search import fuzzy
from codespace.runner.search.confinement import Confinement, Prober
from codespace.runner.search.globs import Glob, check, directory
from codespace.runner.search.ripgrep import Question, Ripgrep, shown
from codespace.runner.search.stopping import Stop, run_stoppable
from codespace.runner.threads import is_shortage
from codespace.runner.turns import Turns

T = TypeVar("T")

_WHOLE_CALL_SECONDS: Final = limits.SEARCH_SECONDS + limits.SANDBOX_PROBE_SECONDS + limits.REAP_SECONDS


class Search:
    """The finding verbs of the runner.

    Args:
        rg_path, bwrap_path: The operator's choice of program; None for ours or the system's, whichever is newer.
        allow_bubblewrap: False to confine by descriptors alone.
    """

    def __init__(
        self,
        roots: Roots,
        *,
        rg_path: str | None = None,
        bwrap_path: str | None = None,
        allow_bubblewrap: bool = True,
    ) -> None:
        self._roots = roots
        self._prober = Prober(rg_path, bwrap_path, allow_bubblewrap=allow_bubblewrap)
        self._turns = Turns(limits.SEARCHES_AT_ONCE)
        self._probing = trio.CapacityLimiter(1)

    async def confinement(self) -> Confinement:
        """Return what find and search are confined by, for workspace_info.

        Raises: Refusal FILE_OPERATION_FAILED where there is no ripgrep, TIMEOUT.
        """
        return await self._bounded(lambda _: self._prober.confinement(), self._probing)

    async def find(
        self, workspace: Workspace, *, glob: str | None, query: str | None, include_ignored: bool, limit: int
    ) -> FindResult:
        """Return the paths of files, dotfiles too, without what .gitignore leaves out.

        Args:
            glob: Which paths, as .gitignore reads one: `*.py` at any depth, `src/**/*.py` from the root.
                With `!` before it, all others. One that names a directory is about what is below it. A path that
                is there is taken by its letters, `[` and `{` too.
            query: Letters that appear in the path in that order; the answer is then sorted by fit, else by name.
            include_ignored: Also what .gitignore leaves out; never `.git`.
            limit: Most paths.
        Returns: `total_seen` counts those that answered before the cut. `reason` says why it was cut:
            `limit`, `time`, `size`, or `unreadable` where something was left out that may not be read.
        Raises: Refusal INVALID_ARGUMENT, FILE_OPERATION_FAILED, TIMEOUT.
        Cancel: nothing is left running.
        """
        _check_limit(limit)
        if glob is not None:
            _check_text("glob", glob)
        if query is not None:
            _check_text("query", query)

        def work(stop: Stop) -> FindResult:
            aimed = _aimed(glob, self._roots.of(workspace))
            call, wanted = self._call(workspace, stop, aimed), _filter(aimed)
            names = call.names(wanted, include_ignored=include_ignored)
            kept, total = fuzzy.best(query, names, limit) if query is not None else (names[:limit], len(names))
            paths = tuple(shown(path) for path in kept)
            reason = call.cut or ("limit" if total > limit else "unreadable" if call.unreadable else None)
            return FindResult(paths, reason is not None, total, reason, _notes(call))

        return await self._bounded(work, self._turns.of(workspace))

    async def search(
        self,
        workspace: Workspace,
        pattern: str,
        *,
        literal: bool,
        glob: str | None,
        context_lines: int,
        limit: int,
    ) -> SearchResult:
        """Return lines that match, sorted by path and line; ignored files are not searched.

        Of a file with a NUL byte the lines before the first one are text, and shown; that it matches behind it is said.

        Args:
            pattern: ripgrep's regular expression, matched within one line; `literal` takes it as it is.
            glob: Which paths, as in find.
            context_lines: Lines shown before and after each match.
            limit: Most matches.
        Returns: `column` counts characters from 1. A long line is cut to a window around the match.
            What is over limits.SEARCH_ANSWER_BYTES is left out, with the reason `size`.
            `files_searched` is a lower bound where `truncated`; `reason` as in find, or `binary` where nothing is
            missing but matches behind a NUL byte. `notes` say in which files, and what else was left out.
        Raises: Refusal INVALID_ARGUMENT with ripgrep's words about the pattern; FILE_OPERATION_FAILED, TIMEOUT.
        Cancel: nothing is left running.
        """
        _check_limit(limit)
        _check_text("pattern", pattern)
        if not 0 <= context_lines <= limits.SEARCH_CONTEXT_LINES:
            raise _wrong("context_lines", f"context_lines is not within 0 and {limits.SEARCH_CONTEXT_LINES}.")
        if glob is not None:
            _check_text("glob", glob)

        def work(stop: Stop) -> SearchResult:
            aimed = _aimed(glob, self._roots.of(workspace))
            call = self._call(workspace, stop, aimed)
            prefilter = _prefilter(aimed)
            matches = call.matches(
                Question(
                    pattern=pattern,
                    literal=literal,
                    context_lines=context_lines,
                    wanted=_filter(aimed),
                    prefilter=prefilter,
                    is_prefilter_all=prefilter is not None and prefilter == aimed,
                    most=limit + 1,  # of one file: one more than is shown tells that there is more
                )
            )
            found = sorted(matches.found, key=lambda match: (match.path, match.line))
            reason = call.cut or ("size" if matches.too_long else "unreadable" if call.unreadable else None)
            reason = reason or ("binary" if matches.behind else None)
            if len(found) > limit and reason != "time":
                reason = "limit"
            told = _fitting(found[:limit])
            if len(told) < min(len(found), limit) and reason != "time":
                reason = "size"
            return SearchResult(told, reason is not None, matches.files_searched, reason, _notes(call, matches.behind))

        return await self._bounded(work, self._turns.of(workspace))

    def _call(self, workspace: Workspace, stop: Stop, aimed: str | None) -> Ripgrep:
        root = self._roots.of(workspace)
        confinement = self._prober.confinement()
        below = "" if aimed is None or aimed.startswith("!") else directory(aimed)
        return Ripgrep(root, workspace, confinement, stop, time.monotonic() + limits.SEARCH_SECONDS, below)

    async def _bounded(self, work: Callable[[Stop], T], turn: trio.CapacityLimiter) -> T:
        try:
            with trio.fail_after(_WHOLE_CALL_SECONDS):
                return await run_stoppable(work, turn)
        except (OSError, RuntimeError) as error:  # no descriptor or thread is left, or a program went meanwhile
            if isinstance(error, RuntimeError) and not is_shortage(error):
                raise
            why = error.strerror if isinstance(error, OSError) else None
            raise Refusal(
                "FILE_OPERATION_FAILED",
                f"The search could not be made: {why or error}. Nothing changed.",
                next_step="Call again; if it repeats, ask the operator, for whom `codespace doctor` looks.",
            ) from error
        except trio.TooSlowError:
            raise Refusal(
                "TIMEOUT", f"The search had no turn or no answer in {_WHOLE_CALL_SECONDS:g} s. Nothing changed."
            ) from None


def _fitting(found: Sequence[Match]) -> tuple[Match, ...]:
    """Return the first matches, as many as one answer holds; one alone always fits."""
    left = limits.SEARCH_ANSWER_BYTES
    for number, match in enumerate(found):
        left -= len(json.dumps(astuple(match), ensure_ascii=False).encode(errors="replace"))
        if left < 0:
            return tuple(found[:number])
    return tuple(found)


def _notes(call: Ripgrep, behind: Sequence[str] = ()) -> tuple[str, ...]:
    """Say what was left out, and how to have it."""
    notes = []
    if behind:
        notes.append(
            f"matches behind a NUL byte are not shown, in {_some(behind)}. Next: read them, or `grep -a` in a command."
        )
    if call.too_large:
        size = limits.SEARCH_BINARY_BYTES // 1_048_576
        notes.append(
            f"binary files over {size} MiB are left out: {_some(call.too_large)}. Next: `grep -a` in a command."
        )
    if call.is_text_only:
        notes.append(
            "files with a NUL byte were passed over, so that all others were searched; files_searched counts them too. "
            "Next: narrow it by `glob` to have them searched."
        )
    if call.closed is not None:
        notes.append(
            f"not readable, so left out: {shown(call.closed)} (the first such path). "
            "Next: a `glob` that leads elsewhere gives a whole answer."
        )
    return tuple(notes)


def _some(paths: Sequence[str]) -> str:
    first = sorted(paths)[: limits.SEARCH_NAMED_FILES]
    more = len(paths) - len(first)
    return f"{', '.join(first)} and {more:,} more" if more else ", ".join(first)


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise _wrong("limit", f"limit is {limit}; at least 1 is needed.")


def _check_text(name: str, text: str) -> None:
    most = limits.SEARCH_PATTERN_CHARACTERS
    if not text.strip() and (name == "query" or not text):
        raise _wrong(name, f"The {name} is empty.")
    if len(text) > most:
        raise _wrong(name, f"The {name} has {len(text):,} characters, over the limit of {most:,}.")
    if "\0" in text or not _is_unicode(text):
        raise _wrong(name, f"The {name} has a NUL or is not Unicode text.")


def _wrong(argument: str, problem: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{problem} Nothing was searched.", details={"argument": argument})


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _aimed(glob: str | None, root: Root) -> str | None:
    """Return a glob as it is meant, from the root on where it has a slash, without `.` and doubled slashes.

    What is there by its very letters, as a listing gives them, is meant by them. A directory means what is below it:
    there are only files to be found.

    Raises: Refusal PATH_ESCAPE, INVALID_ARGUMENT for a slip that would match nothing.
    """
    body = (glob or "").removeprefix("!")
    if not glob or not body:
        return None
    _refuse_absolute(body, root)
    parts = body.split("/")
    names = [name for name in parts if name not in ("", ".")]
    sign, anchor = "!" * glob.startswith("!"), "/" * (len(parts) > 1 and parts[0] in ("", "."))
    if not names:
        return f"{sign}**"
    is_directory = len(parts) > 1 and parts[-1] in ("", ".")
    spelt = list(takewhile(lambda name: "*" not in name and "?" not in name, names))
    looked = _looked(root, spelt)
    if looked is not None:
        names[: len(spelt)] = [re.sub(r"[\[\]{}\\]", r"\\\g<0>", name) for name in spelt]
        if len(spelt) == len(names) and stat.S_ISDIR(looked.st_mode):
            is_directory, anchor = True, "/"
    body = f"{anchor}{'/'.join(names)}"
    check(body)
    if is_directory:
        body = f"{'' if '/' in body else '**/'}{body}/**"
    return f"{sign}{body}"


def _refuse_absolute(body: str, root: Root) -> None:
    own = root.path.rstrip("/")
    if own and f"{body}/".startswith(f"{own}/") and _looked(root, own[1:].split("/")) is None:
        inside = body.removeprefix(own).strip("/")
        raise Refusal(
            "INVALID_ARGUMENT",
            "The glob begins with the path of the workspace root, and paths are compared from there on. "
            "Nothing was searched.",
            next_step=f"Write {display(inside, limit=limits.SHOWN_NAME_CHARACTERS)} alone."
            if inside
            else "Leave it out.",
            details={"argument": "glob"},
        )


def _looked(root: Root, names: Sequence[str]) -> os.stat_result | None:
    """Return the status of what is there, on no link and hidden by no rule; None for nothing."""
    if not names or ".." in names:
        return None
    with contextlib.suppress(Refusal):
        return root.look("/".join(names))
    return None


def _filter(glob: str | None) -> Callable[[str], bool] | None:
    if glob is None:
        return None
    matches = Glob(glob.removeprefix("!")).matches
    return (lambda path: not matches(path)) if glob.startswith("!") else matches


def _prefilter(glob: str | None) -> str | None:
    """Return the last name's glob where ripgrep reads it exactly as we do, so that it opens fewer files.

    Not one with `?`: ripgrep's stands for one byte, and would leave out a name with a letter that is not ASCII there.
    """
    if glob is None or glob.startswith("!"):
        return None
    last = glob.rpartition("/")[2]
    plain = all(character.isalnum() or character in "._-*" for character in last)
    return last if last and plain and "{" not in glob and "**" not in last else None
