"""What a command's environment is made of, and what a caller may not put into it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from codespace import limits
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner import environment, program
from codespace.runner.homes import Homes


def refusal(env: Mapping[str, str]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        environment.check(env)
    assert caught.value.code == "INVALID_COMMAND"
    return caught.value


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "DYLD_INSERT_LIBRARIES",
        "PYTHONSTARTUP",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUSERBASE",
        "NODE_OPTIONS",
        "BASH_ENV",
        "ENV",
        "PERL5OPT",
        "PERL5LIB",
        "PERLLIB",
        "LUA_INIT_5_4",
        "PHPRC",
        "ZDOTDIR",
        "MAKEFLAGS",
        "MAKEFILES",
        "TAR_OPTIONS",
        "RUBYOPT",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_EXTERNAL_DIFF",
        "GIT_CONFIG",
        "GIT_CONFIG_COUNT",
        "GIT_CONFIG_KEY_0",
        "SSH_AUTH_SOCK",
        "SSH_AGENT_PID",
        "DBUS_SESSION_BUS_ADDRESS",
        "DOCKER_HOST",
        "http_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "NO_PROXY",
        "BASH_FUNC_ls%%",
        "PATH",
        "HOME",
    ],
)
def test_a_caller_may_not_set(name: str) -> None:
    found = refusal({name: "x", "FINE": "y"})
    assert name in found.message
    assert found.details is not None
    assert list(found.details["refused"]) == [name]


def test_all_refused_variables_are_named_at_once() -> None:
    found = refusal({"LD_PRELOAD": "x", "HOME": "/", "OK": ""})
    assert found.details is not None
    assert set(found.details["refused"]) == {"LD_PRELOAD", "HOME"}


@pytest.mark.parametrize("name", ["", "A=B", "A\0B", "A\nB", "Ä", "\ud800"])
def test_a_name_that_no_program_can_have_is_refused(name: str) -> None:
    refusal({name: "x"})


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_a_value_that_no_program_can_be_given_is_refused(value: str) -> None:
    refusal({"NAME": value})


def test_too_many_variables_are_refused() -> None:
    found = refusal({f"V{number}": "" for number in range(limits.ENVIRONMENT_VARIABLES + 1)})
    assert f"{limits.ENVIRONMENT_VARIABLES + 1} variables" in found.message
    assert "ask the operator" not in found.next_step, "no setting allows more"


def test_hostile_names_are_escaped_in_the_message() -> None:
    assert "\x1b" not in refusal({"LD_\x1b[31m": "x"}).message


@pytest.mark.parametrize(
    "name", ["TERM", "LANG", "LC_ALL", "CI", "GIT_AUTHOR_NAME", "GIT_TERMINAL_PROMPT", "TZ", "COLUMNS"]
)
def test_a_caller_may_set(name: str) -> None:
    environment.check({name: "any text, ünïcode too"})


def test_the_environment_is_made_from_nothing() -> None:
    assert environment.build({}, {}, "/home/of/run") == {
        "PATH": environment.PATH,
        "HOME": "/home/of/run",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def test_the_operator_wins_over_the_caller_and_the_caller_over_the_base() -> None:
    built = environment.build({"A": "operator", "PATH": "/opt/bin"}, {"A": "caller", "TERM": "xterm"}, "/h")
    assert (built["A"], built["PATH"], built["TERM"]) == ("operator", "/opt/bin", "xterm")


@pytest.mark.parametrize("argv", [(), ("",), ("a\0b",), ("ok", "\ud800"), ("x",) * (limits.COMMAND_ITEMS + 1)])
def test_an_argv_that_cannot_be_executed_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(Refusal, match="Nothing was started") as caught:
        environment.check_argv(argv)
    assert caught.value.code == "INVALID_COMMAND"


# --- which program ---


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    descriptor = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield tmp_path, descriptor
    os.close(descriptor)


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_bare_name_is_found_in_the_first_directory_that_has_it(folder: tuple[Path, int]) -> None:
    root, descriptor = folder
    second = executable(root / "b/tool")
    (root / "a").mkdir()
    assert program.find("tool", f"{root}/a:{root}/b", descriptor) == str(second)


def test_a_program_in_the_workspace_never_stands_in_for_one_in_path(folder: tuple[Path, int]) -> None:
    root, descriptor = folder
    executable(root / "tool")
    with pytest.raises(Refusal) as caught:
        program.find("tool", ":.:bin", descriptor)
    assert caught.value.code == "PROCESS_SPAWN_FAILED"


def test_a_path_is_relative_to_the_directory(folder: tuple[Path, int]) -> None:
    root, descriptor = folder
    executable(root / "bin/tool")
    assert program.find("./bin/tool", environment.PATH, descriptor) == "./bin/tool"


@pytest.mark.parametrize(
    ("name", "says"),
    [("./gone", "no such file"), ("./plain", "not executable"), ("./sub", "directory"), ("./pipe", "a FIFO")],
)
def test_a_path_that_is_no_program_says_why(folder: tuple[Path, int], name: str, says: str) -> None:
    root, descriptor = folder
    (root / "plain").write_text("x")
    (root / "sub").mkdir()
    os.mkfifo(root / "pipe", 0o755)
    with pytest.raises(Refusal, match=says) as caught:
        program.find(name, environment.PATH, descriptor)
    assert caught.value.code == "PROCESS_SPAWN_FAILED"


def test_a_shell_line_in_one_item_gets_a_hint(folder: tuple[Path, int]) -> None:
    with pytest.raises(Refusal) as caught:
        program.find("ls -la | wc", environment.PATH, folder[1])
    assert "no shell" in caught.value.next_step


async def test_a_hold_binds_the_program_and_what_argv_may_name(folder: tuple[Path, int]) -> None:
    root, descriptor = folder
    executable(root / "bin/run", "#!/bin/sh\n# one\n")
    workspace = Workspace("w", str(root), env={"PATH": f"{root}/bin"})
    asked: list[str] = []

    async def bound_of(path: str) -> dict[str, str]:
        asked.append(path)
        return {f"file:{path}": "sha256:1"} if path.endswith("main.py") else {}

    argv = (
        "run",
        "main.py",
        "--config=etc/app.toml",
        f"/{root}/abs.txt",
        "ld/../out.py",
        "/proc/self/cwd/own.py",
        f"//proc/thread-self/root{root}/own.txt",
        "a\u00a0b\nc",
        "/etc/passwd",
        f"{root}/../beside",
    )
    bound = await program.resolve(workspace, argv, "sub", descriptor, bound_of)
    version = bound.pop("program_version")
    assert version.startswith("sha256:")
    assert bound == {
        "program": f"{root}/bin/run",
        "program_file": f"{root}/bin/run",
        f"file:{root}/sub/main.py": "sha256:1",
    }
    named = "sub/run sub/main.py sub/--config=etc/app.toml sub/etc/app.toml abs.txt sub/ld/../out.py sub/own.py own.txt"
    assert asked == [f"{root}/{name}" for name in (*named.split(), "sub/a\u00a0b\nc")]
    executable(root / "bin/run", "#!/bin/sh\n# two\n")
    assert (await program.resolve(workspace, argv, "sub", descriptor, bound_of))["program_version"] != version


# --- private homes ---


def test_homes_are_private_and_gone_with_their_owner(tmp_path: Path) -> None:
    homes = Homes(str(tmp_path))
    home = Path(homes.make("proc-1"))
    assert home.stat().st_mode & 0o777 == 0o700
    (home / "deep/er").mkdir(parents=True)
    (home / "out").symlink_to("/etc")
    homes.remove("proc-1")
    assert not home.exists()
    homes.make("proc-2")
    homes.close()
    assert list((tmp_path / "homes").iterdir()) == []
    assert Path("/etc/passwd").exists()


def test_a_later_owner_sweeps_what_a_killed_one_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    living = Homes(str(tmp_path))
    kept = Path(living.make("proc-1"))
    left = tmp_path / "homes/0123456789abcdef/proc-9"
    left.mkdir(parents=True)
    later = Homes(str(tmp_path))
    later.sweep()
    assert kept.exists()
    assert not left.parent.exists()
    later.close()
    living.close()


def test_a_home_of_any_depth_is_removed_and_ends_nobody(tmp_path: Path) -> None:
    homes = Homes(str(tmp_path))
    where = os.open(homes.make("proc-1"), os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(2_100):  # deeper than a path is long, and than Python calls itself
        os.mkdir("d", dir_fd=where)
        os.close(os.open("f", os.O_CREAT, dir_fd=where))
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=where)
        os.close(where)
        where = below
    os.close(where)
    try:
        homes.remove("proc-1")
        assert not Path(homes.path("proc-1")).exists()
        homes.close()
        assert list((tmp_path / "homes").iterdir()) == []
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "homes"], check=True)  # where it is left, pytest could not remove it


MOUNTED = """
import os, subprocess, sys
from codespace.runner.homes import Homes
homes = Homes(".")
for where in (homes.make("proc-1"), homes.make("proc-2") + "/below"):
    os.makedirs(where + "/mounted")
    done = subprocess.run(["mount", "--bind", "precious", where + "/mounted"])
    if done.returncode:
        sys.exit(77)
homes.close()
"""


def test_what_a_command_mounted_in_its_home_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious/deep").mkdir(parents=True)
    (tmp_path / "precious/deep/file").write_text("kept")
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    done = subprocess.run(
        ["unshare", *namespaces, sys.executable, "-c", MOUNTED],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"nothing can be mounted here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "precious/deep/file").read_text() == "kept"


def test_a_home_with_locked_directories_is_removed_all_the_same(tmp_path: Path) -> None:
    script = """
import os, shutil
from codespace.runner.homes import Homes
if os.getuid() == 0:  # root passes every lock, so the test needs a plain user
    os.chown(".", 65534, 65534)
    os.setresuid(65534, 65534, 65534)
homes = Homes(".")
locked = homes.make("proc-1") + "/pkg/mod"
os.makedirs(locked)
open(locked + "/file", "w").close()
os.chmod(locked, 0o500)
os.chmod(os.path.dirname(locked), 0)
homes.close()
print(os.listdir("homes"))
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.stdout == "[]\n", found.stderr
