"""What configuration makes git run, or believe, that lies in the workspace: hooks, programs, more configuration.

`include.path = ../.gitconfig` and `core.hooksPath = tools/hooks` are the operator's choice, and from then on who writes
such a file chooses what runs at the next git command on the host. So does who writes a link on the way to it: a link
cannot be protected by itself, so the directory that it lies in is. Nothing here runs git.

Source: git-config(1), githooks(5).
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import re
import stat
import string
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from codespace import limits
from codespace.beneath import Entry, Root
from codespace.beneath.reading import SETTLED_NANOSECONDS, Stamp, stamp_of
from codespace.errors import Refusal
from codespace.sandbox import shortage
from codespace.sandbox.inventory import gitaccount, gitsettings, gitways
from codespace.sandbox.inventory.gitaccount import Account
from codespace.sandbox.inventory.gitsettings import Named
from codespace.sandbox.inventory.gitways import Way
from codespace.sandbox.inventory.scan import GitDirectory, is_git_name

_CONFIGURATIONS: Final = ("config", "config.worktree")
WORKTREES: Final = "worktrees"
_ENTRIES: Final = 1_024
# Most hooks of one repository, and worktrees, that are looked at.
_HOOKS: Final = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg"),
    *("commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update"),
    *("proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc"),
    *("post-rewrite", "sendemail-validate", "fsmonitor-watchman", "p4-changelist", "p4-prepare-changelist"),
    *("p4-post-changelist", "p4-pre-submit", "post-index-change"),
)
"""Where the root itself is the directory of hooks: it cannot be read-only as a whole."""
_OF_HUSKY: Final = "_"
"""Where husky keeps its hooks, each of which runs the script of its name beside that directory."""
_LISTING: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKED: Final = (errno.ELOOP, errno.ENOTDIR)
"""What is said of a directory where a link is on the way, and where it is one itself."""
_NOBODY: Final = Account()

Found = dict[str, bool]
"""Places relative to the root, and whether git looks for hooks there only when somebody pushes into the repository."""


def places(root: Root, common: str | None = None, account: Account = _NOBODY) -> tuple[str, ...]:
    """Return a glob for each place below `root` that the configuration of its own repository names.

    Args:
        common: The git directory outside the root that a worktree belongs to; None where there is none.
        account: What holds for every repository.
    Raises: Refusal SANDBOX_UNAVAILABLE for what takes long.
    """
    return _globs(paths(root, common, account))


def places_of(root: Root, repositories: Iterable[GitDirectory], account: Account = _NOBODY) -> tuple[str, ...]:
    """Return what `places` does, for all repositories that lie below the root with their configuration."""
    return _globs(paths_of(root, repositories, account))


def places_beyond(root: Root, common: str | None, account: Account) -> tuple[str, ...]:
    """Return globs of what `places` finds only for looking outside of the root too.

    Hooks that the account has git look for in every working tree are meant at any depth.
    """
    known = paths_of(root, repositories(root, (".",)))
    found = {place: is_pushed for place, is_pushed in paths(root, common, account).items() if place not in known}
    hooks = (posixpath.normpath(named.path) for named in account.named if named.kind == "hooks" and _is_relative(named))
    return (*_globs(found), *(_glob(path, "**/") for path in hooks if path != "." and not path.startswith("..")))


def paths(root: Root, common: str | None = None, account: Account = _NOBODY) -> Found:
    """Return the paths themselves. Of the root's own repository more is read than lies below the root, as git does."""
    search = _Search(root, account, beyond=True)
    search.see_account()
    for itself in repositories(root, (".",)):
        own = f"{root.path}/.git" if itself.kind == "directory" else leads_to(root, ".git")
        search.see_repository((root.path,), (own,) if common is None else (common, own), worktrees=True)
    search.see_named((root.path,), (f"{root.path}/.git",))
    for top, directories in above(root):
        search.see_repository((top,), directories, worktrees=True)
        search.see_named((top,), directories)
    return search.found


def paths_of(root: Root, repositories: Iterable[GitDirectory], account: Account = _NOBODY) -> Found:
    """Return the paths themselves, relative to the root. Raises: Refusal SANDBOX_UNAVAILABLE for what takes long.

    What lies outside of the root is not read: which place on this machine is opened is not a command's to say.
    """
    search = _Search(root, account)
    for repository in repositories:
        if repository.kind == "link":
            continue
        whole = posixpath.normpath(posixpath.join(root.path, repository.path))
        tops = (whole if repository.kind == "bare" else posixpath.dirname(whole),)
        directories = search.directories(repository)
        search.see_repository(tops, directories, worktrees=repository.kind != "gitfile")
        search.see_named(tops, directories)
    return search.found


def repositories(root: Root, directories: Iterable[str]) -> Iterator[GitDirectory]:
    """Yield those that directories are the working trees of."""
    for directory in directories:
        path = ".git" if directory == "." else f"{directory}/.git"
        try:
            status = root.look(path)
        except Refusal as refused:
            if shortage.is_behind(refused):
                raise
            continue
        if status is not None and not stat.S_ISLNK(status.st_mode):
            yield GitDirectory(path, "directory" if stat.S_ISDIR(status.st_mode) else "gitfile")


def above(root: Root) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the top of each working tree that the root lies in, and its git directory; all absolute.

    Of a linked worktree it is two: what all share, and its own.
    """
    top = root.path
    while top != posixpath.dirname(top):
        top = posixpath.dirname(top)
        place = posixpath.join(top, ".git")
        if os.path.isdir(place):
            yield top, (place,)
        elif said := gitways.pointed(gitaccount.text(place)).removeprefix("gitdir: "):
            own = posixpath.join(top, said)
            common = gitways.pointed(gitaccount.text(f"{own}/commondir"))
            yield top, (posixpath.join(own, common), own) if common else (own,)


def tops(root: Root, repository: GitDirectory) -> list[str]:
    """Return where a repository's configuration below the root says that its working tree is; absolute."""
    search = _Search(root, _NOBODY)
    directories = search.directories(repository)
    said = search.said(directories)
    return [posixpath.normpath(posixpath.join(at, one.path)) for one in said if one.kind == "top" for at in directories]


def object_bytes(root: Root, repository: GitDirectory) -> int:
    """Return how long the name of an object is in a repository that has its configuration below the root."""
    search = _Search(root, _NOBODY)
    directories = search.directories(repository)
    return gitsettings.object_bytes(search.read(f"{directories[0]}/config") if directories else "")


def object_bytes_of(directory: str) -> int:
    """Return the same of a git directory anywhere, that of a linked worktree too."""
    common = posixpath.join(directory, gitways.pointed(gitaccount.text(f"{directory}/commondir")))
    return gitsettings.object_bytes(gitaccount.text(f"{common}/config"))


def leads_to(root: Root, gitfile: str) -> str:
    """Return the absolute path that a gitfile names, wherever that is; what cannot be read names its own directory."""
    return _absolute(root, gitways.follow(root, _named_by(root, gitfile)))


class _Search:
    """What the repositories of one root name in it. All paths that it is given are absolute.

    Args:
        beyond: Whether configuration outside of the root is read, where git would.
    """

    def __init__(self, root: Root, account: Account, *, beyond: bool = False) -> None:
        self.found: Found = {}
        self._root = root
        self._account = account
        self._beyond = beyond
        self._room = limits.SANDBOX_BINDS
        self._deadline = time.monotonic() + limits.SANDBOX_SCAN_SECONDS

    def directories(self, repository: GitDirectory) -> list[str]:
        """Return where the configuration of a repository lies below the root: a linked worktree has a part of its own.

        Where a link is on the way, who may change that link chooses the repository.
        """
        end = repository.path if repository.kind != "gitfile" else self._led_to(_named_by(self._root, repository.path))
        if end is None:
            return []
        own = f"{self._root.path}/{end}"
        said = gitways.pointed(text(self._root, f"{end}/commondir"))
        common = self._led_to(posixpath.join(own, said), "HEAD") if said else None
        return [own] if common is None else [f"{self._root.path}/{common}", own]

    def _led_to(self, path: str, name: str = ".") -> str | None:
        """Return where the way to a git directory ends; without `name` in it whoever makes it makes a repository."""
        way = self._follow(path)
        self._add_links(way)
        if way.end is not None and not self._root.reaches(posixpath.normpath(posixpath.join(way.end, name))):
            self._add(way)
        return way.end

    def see_repository(self, tops: Sequence[str], directories: Sequence[str], *, worktrees: bool) -> None:
        """Add what the configuration and the hooks of a repository name.

        Args:
            tops: Where its working tree is.
            directories: Its git directory; of a linked worktree, what all share and its own.
            worktrees: Whether those linked worktrees count that belong to it.
        """
        self._look_at_clock()
        self._room = len(self.found) + limits.SANDBOX_BINDS  # more could not be mounted
        said = self.said(directories)
        tops = (*tops, *(posixpath.join(at, named.path) for named in said if named.kind == "top" for at in directories))
        for named in said:
            self._resolve(named, tops, directories)
        for directory in directories:
            self._see_hooks(f"{directory}/hooks")
        for worktree in self._listed(f"{directories[0]}/{WORKTREES}", links=False) if worktrees else ():
            gitfile = posixpath.join(worktree, gitways.pointed(self.read(f"{worktree}/gitdir"), string.whitespace))
            self.see_repository((posixpath.dirname(gitfile),), (worktree,), worktrees=False)

    def see_account(self) -> None:
        """Add where the account's own configuration lies, if the way there leads through the root."""
        for way in _ways_of(self._root, self._account):
            self._add(way)

    def see_named(self, tops: Sequence[str], directories: Sequence[str] = ()) -> None:
        """Add what the account's configuration names in the repository with these; what is absolute, once."""
        for named in self._account.named:
            if self._beyond or _is_relative(named):
                self._resolve(named, tops, directories)

    def said(self, directories: Sequence[str]) -> list[Named]:
        """Return what the configuration of a repository names, and add that which it includes."""
        left = deque(f"{directory}/{name}" for directory in directories for name in _CONFIGURATIONS)
        seen: set[str] = set()
        said: list[Named] = []
        while left and len(seen) < gitaccount.FILES:
            path = left.popleft()
            if path in seen:
                continue
            seen.add(path)
            self._look_at_clock()
            for named in gitsettings.named(self.read(path)):
                if named.kind == "configuration":
                    left.append(gitaccount.beside(path, named.path))
                    self._add(self._follow(left[-1]))
                else:
                    said.append(named)
        return said

    def _resolve(self, named: Named, tops: Sequence[str], directories: Sequence[str]) -> None:
        """Add where a path leads from the top of a working tree, and from the git directory where hooks may start."""
        if named.kind == "top":
            return
        path = posixpath.expanduser(named.path)
        pushed = directories if named.kind == "hooks" and not posixpath.isabs(path) else ()
        for base, is_pushed in (*((top, False) for top in tops), *((directory, True) for directory in pushed)):
            way = self._follow(posixpath.join(base, path))
            self._add(way, is_pushed=is_pushed)
            if named.kind == "hooks":
                self._see_hooks_at(way)
                beside, _, last = path.rstrip("/").rpartition("/")
                if last == _OF_HUSKY and not is_pushed:
                    self._add(self._follow(posixpath.join(base, beside)))

    def _see_hooks_at(self, way: Way) -> None:
        if way.end == ".":
            for hook in _HOOKS:
                self._add(self._follow(f"{self._root.path}/{hook}"))
        elif way.end is not None or self._beyond:
            self._see_hooks(_absolute(self._root, way))

    def _see_hooks(self, directory: str) -> None:
        """Add where links lead that lie among hooks."""
        for hook in self._listed(directory, links=True):
            self._add(self._follow(hook))

    def _look_at_clock(self) -> None:
        if time.monotonic() > self._deadline:
            raise _too_much()

    def _follow(self, path: str) -> Way:
        self._look_at_clock()
        way = gitways.follow(self._root, path)
        if way.is_endless:
            raise _too_much()
        return way

    def _add(self, way: Way, *, is_pushed: bool = False) -> None:
        self._add_links(way)
        if way.end is not None and way.end != ".":
            self._put(way.end, is_pushed=is_pushed)

    def _add_links(self, way: Way) -> None:
        for link in way.links:
            self._put(posixpath.dirname(link) or link)

    def _put(self, place: str, *, is_pushed: bool = False) -> None:
        if place in self.found or len(self.found) < self._room:
            self.found[place] = self.found.get(place, True) and is_pushed

    def read(self, path: str) -> str:
        """Return the text of a configuration; where a link leads to it, add the way."""
        inside = _inside(self._root, path)
        if inside is not None and self._root.stamp(inside) is None:
            return ""  # nearly always so for all but one, and an error costs more than a look
        try:
            if inside is not None:
                return _content(self._root, inside)
        except Refusal as refused:
            if shortage.is_behind(refused):
                raise
            if refused.code != "SYMLINK_REJECTED":
                return ""
        place = self._way_to(path)
        if place is None:
            return ""
        return gitaccount.text(place) if posixpath.isabs(place) else text(self._root, place)

    def _listed(self, path: str, *, links: bool) -> list[str]:
        """Return what lies in a directory, links or directories; where a link leads to it, add the way."""
        inside = _inside(self._root, path)
        stamp = None if inside is None else self._root.stamp(inside)
        if inside is not None and (stamp is None or (links and stamp in _plain)):
            return []
        try:
            descriptor = self._open(path)
        except OSError as error:
            if shortage.is_behind(error):
                raise
            return []
        if descriptor is None:
            return []
        try:
            names = _names(descriptor, links=links)
            if links and not names:
                self._remember(stamp_of(os.fstat(descriptor)))
        except OSError as error:
            if shortage.is_behind(error):
                raise
            return []
        finally:
            os.close(descriptor)
        return [f"{path}/{name}" for name in names]

    def _remember(self, stamp: Stamp) -> None:
        """Take note of a directory without links, where it can be known again: as `scan` does, and for its reasons."""
        settled = stamp[0] == self._root.identity[0] and stamp[-1] < time.time_ns() - SETTLED_NANOSECONDS
        if settled and self._root.tells_changes():
            if len(_plain) >= _ENTRIES:
                _plain.clear()
            _plain[stamp] = None

    def _open(self, path: str) -> int | None:
        inside = _inside(self._root, path)
        try:
            if inside is not None:
                return self._root.open_listing(inside)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
        place = self._way_to(path)
        if place is None:
            return None
        return os.open(place, _LISTING) if posixpath.isabs(place) else self._root.open_listing(place)

    def _way_to(self, path: str) -> str | None:
        """Return where a path leads, relative to the root, or absolute if it may be looked at; None for nowhere."""
        way = self._follow(path)
        if way.links:
            self._add(way)
        return way.end or (way.outside if self._beyond else None)


_ways: dict[tuple[int, int], tuple[Account, tuple[Way, ...]]] = {}


def _ways_of(root: Root, account: Account) -> tuple[Way, ...]:
    """Return the ways to an account's configuration that lead through the root, looked up once for each of its looks.

    The links on them that lie in the root cannot be changed meanwhile: they are protected.
    """
    known = _ways.get(root.identity)
    if known is not None and known[0] is account:
        return known[1]
    followed = (gitways.follow(root, path) for path in account.files)
    found = tuple(way for way in followed if way.links or way.end is not None)
    if len(_ways) >= limits.SANDBOX_MEMORIES:
        _ways.clear()
    _ways[root.identity] = account, found
    return found


_plain: dict[Stamp, None] = {}
"""Directories of hooks without a link among them, as nearly all are: another name or file gives them another stamp."""


def _names(descriptor: int, *, links: bool) -> list[str]:
    with os.scandir(descriptor) as entries:
        return [
            entry.name
            for entry in itertools.islice(entries, _ENTRIES)
            if (entry.is_symlink() if links else entry.is_dir(follow_symlinks=False))
        ]


def _is_relative(named: Named) -> bool:
    return not named.path.startswith(("/", "~"))


def _absolute(root: Root, way: Way) -> str:
    return posixpath.normpath(posixpath.join(root.path, way.end or way.outside or "."))


def _named_by(root: Root, gitfile: str) -> str:
    """Return the path in a gitfile, absolute and as it is spelled; that of its own directory where it says none."""
    said = gitways.pointed(text(root, gitfile)).removeprefix("gitdir: ")
    return posixpath.join(root.path, posixpath.dirname(gitfile), said)


def _globs(found: Found) -> tuple[str, ...]:
    """Return globs of what can be protected by its name; in a git directory, everything is that is of its own."""
    return tuple(
        _glob(place)
        for place, is_pushed in found.items()
        if not (is_pushed and any(is_git_name(name) for name in place.split("/")))
    )


def _glob(place: str, start: str = "/") -> str:
    return start + re.sub(r"[*?\[\]\\]", "?", place)


def text(root: Root, path: str) -> str:
    """Return the text of a file below the root, whatever characters its name has; empty where it is too large, or none.

    Raises: Refusal for a shortage.
    """
    try:
        return _content(root, path)
    except Refusal as refused:
        if shortage.is_behind(refused):
            raise
        return ""


def _content(root: Root, path: str) -> str:
    """Return the text of a file below the root, whatever characters its name has. Raises: Refusal."""
    descriptor = root.open_entry(Entry(path, "file"))
    try:
        return gitaccount.content(descriptor)
    finally:
        os.close(descriptor)


def _inside(root: Root, path: str) -> str | None:
    """Return what a path without `..` is relative to the root; None where it is spelled otherwise."""
    above = root.path.rstrip("/") + "/"
    return path[len(above) :] if path.startswith(above) and ".." not in path.split("/") else None


def _too_much() -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        "Reading the configuration of the git repositories in the workspace took over "
        f"{limits.SANDBOX_SCAN_SECONDS:g} s. Nothing was started.",
        next_step="Ask the operator to look at the size of their `config` files, or to register a smaller directory.",
    )
