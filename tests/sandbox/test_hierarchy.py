"""Where cgroups of runs could be made is read from the mounts: v1, v2, both, a container's part, a user's share."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespace.sandbox.hierarchy import Place, places

V1 = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
31 22 0:28 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw shared:16 - cgroup cgroup rw,cpu,cpuacct
37 31 0:34 / /sys/fs/cgroup/memory rw shared:17 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw shared:18 master:3 - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw shared:19 - cgroup cgroup rw,xattr,name=systemd
"""
UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw shared:20 - cgroup2 cgroup2 rw,nsdelegate\n"
V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
OWN_V1 = "12:cpu,cpuacct:/a\n8:pids:/user.slice/user-1000.slice\n4:memory:/jobs\n1:name=systemd:/x\n"


def seen(folder: Path, mountinfo: str, cgroup: str, controller: str = "pids") -> list[tuple[str, bool]]:
    (folder / "mountinfo").write_text(mountinfo.lstrip("\n"))
    (folder / "cgroup").write_text(cgroup)
    return [(place.folder, place.is_second) for place in places(controller, str(folder))]


@pytest.mark.parametrize(
    ("controller", "folder"),
    [
        ("pids", "/sys/fs/cgroup/pids/user.slice/user-1000.slice"),
        ("memory", "/sys/fs/cgroup/memory/jobs"),
        ("cpuacct", "/sys/fs/cgroup/cpu,cpuacct/a"),
    ],
)
def test_a_v1_controller_is_where_its_hierarchy_is_mounted(tmp_path: Path, controller: str, folder: str) -> None:
    assert seen(tmp_path, V1, OWN_V1, controller) == [(folder, False)]


def test_a_controller_that_nothing_mounts_is_nowhere(tmp_path: Path) -> None:
    assert seen(tmp_path, V1, OWN_V1, "hugetlb") == []
    assert seen(tmp_path, V1.replace("rw,pids", "rw,net_cls"), OWN_V1) == []


def test_both_kinds_are_told_and_v1_first(tmp_path: Path) -> None:
    own = OWN_V1 + "0::/user.slice/session-1.scope\n"
    assert seen(tmp_path, V1 + UNIFIED, own) == [
        ("/sys/fs/cgroup/pids/user.slice/user-1000.slice", False),
        ("/sys/fs/cgroup/unified/user.slice/session-1.scope", True),
        ("/sys/fs/cgroup/unified/user.slice", True),
    ]


def test_a_hybrid_machine_has_in_v2_what_v1_leaves_to_it(tmp_path: Path) -> None:
    without = "".join(line for line in V1.splitlines(keepends=True) if "rw,pids" not in line)
    assert seen(tmp_path, without + UNIFIED, "4:memory:/\n0::/\n") == [("/sys/fs/cgroup/unified", True)]


def test_a_users_share_is_beside_the_own_cgroup(tmp_path: Path) -> None:
    app = "/user.slice/user-1000.slice/user@1000.service/app.slice"
    assert seen(tmp_path, V2, f"0::{app}/codespace.service\n") == [
        (f"/sys/fs/cgroup{app}/codespace.service", True),
        (f"/sys/fs/cgroup{app}", True),
    ]


def test_the_root_of_a_namespace_has_nothing_beside_it(tmp_path: Path) -> None:
    assert seen(tmp_path, V2, "0::/\n") == [("/sys/fs/cgroup", True)]


@pytest.mark.parametrize(
    ("source", "own", "expected"),
    [
        ("/docker/0123", "/docker/0123", "/sys/fs/cgroup/pids"),
        ("/docker/0123", "/docker/0123/job", "/sys/fs/cgroup/pids/job"),
        ("/docker/0123", "/docker/01234", None),
        ("/docker/0123", "/", None),
        ("/..", "/", None),
        ("/", "/../../other", None),
        ("/", "/..data", "/sys/fs/cgroup/pids/..data"),
    ],
)
def test_a_container_sees_its_own_part_and_says_nothing_of_what_is_outside(
    tmp_path: Path, source: str, own: str, expected: str | None
) -> None:
    part = V1.replace("0:36 / /sys", f"0:36 {source} /sys")
    assert seen(tmp_path, part, f"8:pids:{own}\n") == ([] if expected is None else [(expected, False)])


def test_names_with_spaces_are_read_as_they_are(tmp_path: Path) -> None:
    odd = r"39 31 0:36 /a\040b /mnt/c\040g rw - cgroup cgroup rw,pids" + "\n"
    assert seen(tmp_path, odd, "8:pids:/a b/c\n") == [("/mnt/c g/c", False)]


def test_a_hierarchy_that_is_mounted_twice_is_told_twice(tmp_path: Path) -> None:
    twice = V2 + V2.replace("/sys/fs/cgroup", "/mnt/cgroup")
    assert seen(tmp_path, twice, "0::/\n") == [("/sys/fs/cgroup", True), ("/mnt/cgroup", True)]


@pytest.mark.parametrize(("mountinfo", "cgroup"), [("", ""), ("garbage\n", "0::/\n"), (V2, "garbage\n"), (V2, "")])
def test_what_cannot_be_read_is_nowhere(tmp_path: Path, mountinfo: str, cgroup: str) -> None:
    assert seen(tmp_path, mountinfo, cgroup) == []


def test_a_machine_without_such_files_has_none(tmp_path: Path) -> None:
    assert places("pids", str(tmp_path / "gone")) == []


def test_every_place_of_this_machine_is_a_cgroup_that_holds_this_process() -> None:
    own: list[Place] = [place for place in places("pids") if Path(place.folder).is_dir()]
    for place in own:
        assert Path(place.folder, "cgroup.procs").exists()
        assert Path(place.folder, "cgroup.controllers").exists() is place.is_second
