"""The folder of a probe goes with the probe; of one that was killed, the next one removes what is certainly ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codespace.sandbox.probefolder import open_folder

NAME = "codespace-probe-0123456789abcdef"
SECONDS = 60


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


KILLED = """
import os, signal
from codespace.sandbox.probefolder import open_folder
with open_folder() as folder:
    os.makedirs(os.path.join(folder, "root", ".git"))
    for name in ("canary", "root/made", "root/.git/config"):
        open(os.path.join(folder, name), "w").close()
    os.symlink(os.environ["OUTSIDE"], os.path.join(folder, "root", "link"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by_a_killed_probe(place: Path) -> Path:
    """Have a probe killed; return what it left, with a link in it to the folder `outside`."""
    outside = place / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    environ = {**os.environ, "TMPDIR": str(place), "OUTSIDE": str(outside)}
    before = set(place.iterdir())
    subprocess.run([sys.executable, "-c", KILLED], env=environ, timeout=SECONDS, check=False)
    (left,) = set(place.iterdir()) - before
    assert (left / "root/.git/config").exists()
    return left


def test_a_folder_is_new_private_and_gone_behind_the_block(place: Path) -> None:
    with open_folder() as folder:
        assert Path(folder).parent == place
        assert os.stat(folder).st_mode & 0o777 == 0o700
        Path(folder, "root").mkdir()
        Path(folder, "root", "made").touch()
    assert list(place.iterdir()) == []


def test_a_folder_is_gone_also_where_the_block_failed(place: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_folder():
        raise KeyboardInterrupt
    assert list(place.iterdir()) == []


def test_what_a_killed_probe_left_is_swept_by_the_next_and_no_link_is_followed(place: Path) -> None:
    left = left_by_a_killed_probe(place)
    with open_folder():
        assert not left.exists()
    assert [each.name for each in place.rglob("*")] == ["outside", "kept"]


def test_a_folder_whose_probe_was_killed_at_once_is_swept(place: Path) -> None:
    (place / NAME).mkdir(0o700)
    with open_folder():
        assert not (place / NAME).exists()


def test_the_folder_of_a_living_probe_stays(place: Path) -> None:
    with open_folder() as mine:
        Path(mine, "canary").touch()
        with open_folder() as other:
            assert other != mine
            assert Path(mine, "canary").exists()
    assert list(place.iterdir()) == []


def test_a_link_with_such_a_name_leads_nowhere(place: Path) -> None:
    left = left_by_a_killed_probe(place)
    elsewhere = place / "elsewhere"
    left.rename(elsewhere)
    (place / NAME).symlink_to(elsewhere)
    with open_folder():
        pass
    assert (elsewhere / "root/.git/config").exists()
    assert (place / NAME).is_symlink()


def test_a_directory_that_was_given_our_name_keeps_what_is_in_it(place: Path) -> None:
    (place / NAME).mkdir(0o700)
    (place / NAME / "canary").touch()
    with open_folder():
        pass
    assert (place / NAME / "canary").exists()


@pytest.mark.parametrize("name", ["codespace-probe-abc", f"{NAME}0", f"x{NAME}", "codespace-probe-0123456789ABCDEF"])
def test_another_name_than_ours_is_not_looked_at(place: Path, name: str) -> None:
    left = left_by_a_killed_probe(place).rename(place / name)
    with open_folder():
        pass
    assert (left / "canary").exists()


def test_a_folder_that_others_may_enter_is_not_one_of_ours(place: Path) -> None:
    left = left_by_a_killed_probe(place)
    left.chmod(0o750)
    with open_folder():
        pass
    assert (left / "canary").exists()


def test_a_folder_of_another_account_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_by_a_killed_probe(place)
    shutil.rmtree(left / "root")  # a directory below would be refused by itself
    other = os.geteuid() + 1
    with monkeypatch.context() as changed:
        changed.setattr(os, "geteuid", lambda: other)
        with open_folder():
            pass
        assert (left / "canary").exists()


def test_a_file_or_pipe_with_such_a_name_is_left_alone_and_does_not_hold_up_a_probe(place: Path) -> None:
    (place / NAME).touch()
    pipe = place / NAME.replace("0", "f")
    os.mkfifo(pipe, 0o600)
    with open_folder():
        pass
    assert sorted(place.iterdir()) == sorted([place / NAME, pipe])


MOUNTED = r"""
mount -t tmpfs -o mode=0700 none "$2"
touch "$1/.codespace-probe" "$2/canary"
"$3" -c 'from codespace.sandbox.probefolder import open_folder
with open_folder(): pass'
ls -A "$2"
"""


@pytest.mark.parametrize("below", ["", "root"])
def test_a_mount_under_such_a_name_or_below_it_is_not_entered(place: Path, below: str) -> None:
    (place / NAME).mkdir(0o700)
    (place / NAME / below).mkdir(exist_ok=True)
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", MOUNTED, "sh"]
    told = subprocess.run(
        [*words, place / NAME, place / NAME / below, sys.executable],
        env={**os.environ, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "canary" in told.stdout.split(), told.stderr


def test_a_place_that_cannot_be_listed_is_probed_in_all_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "scandir", refuse)
    with open_folder() as folder:
        assert os.path.isdir(folder)


def test_a_folder_of_another_kind_stays(place: Path) -> None:
    left = left_by_a_killed_probe(place)
    with open_folder("codespace-pro"), open_folder("codespace-demo-"), open_folder("codespace-probe-0"):
        assert (left / "canary").exists()


def test_a_folder_lies_where_it_was_asked_for(place: Path) -> None:
    (place / "state").mkdir()
    with open_folder("doctor-", str(place / "state")) as folder:
        assert Path(folder).parent == place / "state"
