"""The kernel's table of mounts, and whether a mount shows what lies under its own name."""

from __future__ import annotations

import pytest

from codespace.sandbox import submounts
from codespace.sandbox.submounts import Entry, Host

TABLE = (
    Entry("8:1", "/", "/", read_only=False, name="/dev/sda1"),
    Entry("8:2", "/home", "/home", read_only=False, name="/dev/sda2"),
    Entry("0:52", "/", "/home/me", read_only=False, name="server:/export/me"),
    Entry("0:60", "/@data", "/srv", read_only=False, name="/dev/sdb1"),
)


@pytest.mark.parametrize(
    ("path", "found", "shows"),
    [
        ("/opt/tool", ("8:1", "/opt/tool", "/dev/sda1"), True),
        ("/opt/tool", ("8:1", "/etc", "/dev/sda1"), False),
        ("/opt/tool", ("8:1", "/", "/dev/sda1"), False),
        ("/opt/tool", ("8:2", "/opt/tool", "/dev/sda2"), False),
        ("/srv/p/.git", ("0:60", "/@data/p/.git", "/dev/sdb1"), True),
        ("/srv/p/.git", ("0:60", "/p/.git", "/dev/sdb1"), False),
        ("/srv", ("0:60", "/@data", "/dev/sdb1"), True),
        ("/home/me/p/.git", ("0:52", "/", "server:/export/me/p/.git"), True),  # as NFS tells it
        ("/home/me/p/.git", ("0:52", "/", "server:/export/me/.ssh"), False),
        ("/home/me/p/.git", ("0:52", "/", "server:/export/me"), False),
        ("/home/me", ("0:52", "/", "server:/export/me"), True),
        ("/homes", ("8:2", "/homes", "/dev/sda2"), False),
    ],
)
def test_a_mount_is_believed_only_where_it_shows_what_lies_there(
    monkeypatch: pytest.MonkeyPatch, path: str, found: tuple[str, str, str], shows: bool
) -> None:
    monkeypatch.setattr(submounts, "table", lambda: iter(TABLE))
    device, source, name = found
    assert Host().holds(path, Entry(device, source, path, read_only=True, name=name)) is shows
