"""The write side: one change a verb, never through a link, never over something unseen."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from codespace.beneath import Root, metadata
from codespace.errors import Refusal


def refused(action: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as raised:
        action()
    return raised.value


def test_a_created_file_has_its_bytes_and_exactly_its_mode(root: Root, tree: Path) -> None:
    root.create("a/new", b"x" * 100_000, 0o666)
    assert (tree / "a" / "new").read_bytes() == b"x" * 100_000
    assert stat.S_IMODE((tree / "a" / "new").stat().st_mode) == 0o666


def test_nothing_is_ever_created_over_a_file_or_a_link(root: Root, tree: Path, outside: Path) -> None:
    (tree / "link").symlink_to(outside / "made")
    for path in ("a/b/file", "link", "a"):
        with pytest.raises(FileExistsError):
            root.create(path, b"new", 0o600)
    assert (tree / "a" / "b" / "file").read_bytes() == b"content\n"
    assert not (outside / "made").exists()


def test_no_verb_goes_through_a_link(root: Root, tree: Path, outside: Path) -> None:
    (tree / "link").symlink_to(outside)
    verbs: list[Callable[[], object]] = [
        lambda: root.create("link/new", b"", 0o600),
        lambda: root.move("a/b/file", "link/new"),
        lambda: root.move("link/file", "new"),
        lambda: root.exchange("a/b/file", "link/file"),
        lambda: root.remove("link/file"),
        lambda: root.make_directory("link/new", 0o700),
        lambda: root.remove_directory("link/file"),
        lambda: root.sync_directory("link"),
    ]
    assert [refused(verb).code for verb in verbs] == ["SYMLINK_REJECTED"] * len(verbs)
    assert os.listdir(outside) == ["file"]


def test_an_exchange_swaps_two_files(root: Root, tree: Path) -> None:
    (tree / "other").write_bytes(b"other")
    root.exchange("a/b/file", "other")
    assert (tree / "other").read_bytes() == b"content\n"
    assert (tree / "a" / "b" / "file").read_bytes() == b"other"


def test_an_exchange_with_nothing_changes_nothing(root: Root, tree: Path) -> None:
    assert refused(lambda: root.exchange("a/b/file", "none")).code == "FILE_NOT_FOUND"
    assert (tree / "a" / "b" / "file").read_bytes() == b"content\n"


def test_a_move_never_overwrites(root: Root, tree: Path) -> None:
    (tree / "other").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        root.move("a/b/file", "other")
    root.move("a/b/file", "a/moved")
    assert (tree / "a" / "moved").read_bytes() == b"content\n"
    assert not (tree / "a" / "b" / "file").exists()


def test_a_removed_link_leaves_its_target(root: Root, tree: Path, outside: Path) -> None:
    (tree / "link").symlink_to(outside / "file")
    root.remove("link")
    assert (outside / "file").exists()


def test_directories_are_made_with_exactly_their_mode_and_removed_when_empty(root: Root, tree: Path) -> None:
    root.make_directory("a/new", 0o775)
    assert stat.S_IMODE((tree / "a" / "new").stat().st_mode) == 0o775
    with pytest.raises(FileExistsError):
        root.make_directory("a/new", 0o775)
    root.sync_directory("a/new")
    root.remove_directory("a/new")
    failure = refused(lambda: root.remove_directory("a"))
    assert failure.code == "FILE_OPERATION_FAILED"
    assert failure.details is not None
    assert failure.details["errno"] == "ENOTEMPTY"


def test_the_root_itself_cannot_be_changed(root: Root) -> None:
    for verb in (root.remove, root.remove_directory):
        assert refused(lambda verb=verb: verb(".")).code == "SPECIAL_FILE_REJECTED"
    assert refused(lambda: root.create("../beside", b"", 0o600)).code == "PATH_ESCAPE"


def test_a_parent_is_lent_and_closed(root: Root) -> None:
    before = os.listdir("/proc/self/fd")
    with root.parent("a/b/file") as (directory, name):
        assert name == "file"
        assert os.stat(name, dir_fd=directory).st_size == 8
    assert os.listdir("/proc/self/fd") == before


def test_metadata_is_copied_with_attributes_and_none_that_were_not_there(root: Root, tree: Path) -> None:
    source, target = tree / "a" / "b" / "file", tree / "target"
    target.write_bytes(b"new")
    source.chmod(0o4751)
    os.setxattr(source, "user.note", b"kept")
    os.setxattr(target, "user.stray", b"gone")
    if os.geteuid() == 0:
        os.chown(source, 1234, 5678)
        source.chmod(0o4751)
    with source.open() as of, target.open() as to:
        metadata.copy(of.fileno(), to.fileno())
    wanted, found = source.stat(), target.stat()
    assert (found.st_mode, found.st_uid, found.st_gid) == (wanted.st_mode, wanted.st_uid, wanted.st_gid)
    assert os.listxattr(target) == ["user.note"]
    assert target.read_bytes() == b"new"


def test_a_file_that_cannot_be_flushed_whole_leaves_nothing(root: Root, tree: Path) -> None:
    """A file size limit of the process makes the write fail in the middle."""
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        failure = refused(lambda: root.create("big", b"x" * 5000, 0o600))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert failure.details is not None
    assert failure.details["errno"] == "EFBIG"
    assert not (tree / "big").exists()
