"""What a configuration's text names, where ways lead, and what is read outside of workspaces."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.sandbox.inventory import gitaccount, gitsettings, gitways
from codespace.sandbox.inventory.gitsettings import Named
from codespace.sandbox.inventory.gitways import Way
from codespace.sandbox.lasting import Look


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("tools/x", ["tools/x"]),
        ("'my tools/x' --flag", ["my tools/x"]),
        ("/srv/my tools/x", ["/srv/my"]),
        ("true", []),
        ("git-lfs filter-process", []),
        ("less -R docs/x", []),
        ("python3 x.py docs/y", ["x.py"]),
        ("python3 -u -W error tools/x.py", ["error", "tools/x.py"]),
        ("python3 -m tools.x", []),
        ("python3 -c 'import x' y", []),
        ("/opt/bin/node tools/x.js", ["/opt/bin/node", "tools/x.js"]),
        ("bash -e tools/x", ["tools/x"]),
        ("A=1 B=2 exec nice tools/x", ["tools/x"]),
        ("nice -n 10 tools/x", ["tools/x"]),
        ("sudo -u somebody env -u A bash tools/x a/b", ["tools/x"]),
        ("timeout 10s tools/x a/b", ["tools/x"]),
        ("nice cat a/b", []),
        ("7z a/b", []),
        ("perl -I lib/ -w tools/x a/b", ["lib/", "tools/x"]),
        ("node -r ./a.js --require b.js tools/x.js c/d", ["./a.js", "b.js", "tools/x.js"]),
        ("php -d limit=1.5G tools/x", ["limit=1.5G", "tools/x"]),
        ("/usr/bin/env -S python3 tools/x", ["/usr/bin/env", "tools/x"]),
        ("cat a/b | tools/x > c/d && ! tools/y; (tools/z)", ["tools/x", "tools/y", "tools/z"]),
        ("f() { git fetch a/b && tools/x; }; f", ["tools/x"]),
        ("if true; then tools/x; else tools/y; fi", ["tools/x", "tools/y"]),
        ("sh -ec 'cd a/b; tools/x \"$1\"' -", ["tools/x"]),
        ("sh -c \"bash -lc 'tools/x'\"", ["tools/x"]),
        (". tools/x", ["tools/x"]),
        ("$(git rev-parse --show-toplevel)/tools/x", ["./tools/x"]),
        ('"${GIT_DIR}/../tools/x" `pwd`/y', ["./../tools/x"]),
        ("$HOME/x; $PWD/y", ["~/x", "./y"]),
        ("tools/x 'unbalanced", ["tools/x"]),
        ("tools/x\0y", ["tools/x"]),  # where it ends for git
    ],
)
def test_the_programs_of_a_command_are_what_it_starts_and_what_interpreters_read(
    command: str, expected: list[str]
) -> None:
    quoted = command.replace("\\", "\\\\").replace('"', '\\"')
    for setting in (f'[filter "x"]\nclean = "{quoted}"\n', f'[alias]\nx = "!{quoted}"\n'):
        assert [named.path for named in gitsettings.named(setting)] == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("[core]\nhooksPath = \\\n\t  tools/x\n", Named("hooks", "tools/x")),
        ('[core]\nhooksPath = "" tools/x\n', Named("hooks", "tools/x")),
        ("[core]\nhooksPath = :(optional)~/x\n", Named("hooks", "~/x")),
        ("[core]\nhooksPath = %(prefix)/x\n", Named("hooks", "/usr/x")),
        ("[core]\nworktree = ../x\n", Named("top", "../x")),
        ("[include]\npath = x y\n", Named("configuration", "x y")),
        ('[includeIf "onbranch:x"]\npath = x\n', Named("configuration", "x")),
        ('[gpg "ssh"]\nprogram = my tools/x\n', Named("program", "my tools/x")),
        ('[submodule "x"]\nupdate = !tools/x\n', Named("program", "tools/x")),
        ("[pager]\ndiff = tools/x\n", Named("program", "tools/x")),
        ('[alias "x"]\ncommand = !tools/x\n', Named("program", "tools/x")),
        ('[merge "x"]\ndriver = tools/x %O %A %B\n', Named("program", "tools/x")),
        ('[credential "https://x"]\nhelper = !tools/x\n', Named("program", "tools/x")),
        ("[init]\ntemplateDir = tools\n", Named("program", "tools")),
        ("[instaweb]\nhttpd = tools/lighttpd -f\n", Named("program", "tools/lighttpd")),
        ("[instaweb]\nmodulePath = tools/modules\n", Named("program", "tools/modules")),
        ("[instaweb]\ngitwebDir = tools/web\n", Named("program", "tools/web")),
        ("[gc]\nrecentObjectsHook = tools/x\n", Named("program", "tools/x")),
        ("[svn]\nauthorsProg = tools/x\n", Named("program", "tools/x")),
        ('[remote "x"]\nurl = ext::tools/x %S\n', Named("program", "tools/x")),
        ('[remote "x"]\nurl = ../tools/x\npushurl = https://tools/x\n', None),
        ("[alias]\nx = commit -m docs/x\n", None),
        ("[core]\nexcludesFile = x/y\nattributesFile = x/y\n[submodule]\nupdate = rebase\n", None),
    ],
)
def test_settings_name_what_decides_what_git_runs(setting: str, expected: Named | None) -> None:
    assert list(gitsettings.named(setting)) == ([expected] if expected else [])


def test_a_long_command_holds_nobody_up() -> None:
    words = [named.path for named in gitsettings.named(f"[alias]\nx = !tools/x {'a;' * 400_000}\n")]
    assert words == ["tools/x"]
    empty = '"" ' * 400_000
    assert list(gitsettings.named(f"[core]\nhooksPath = {empty}x\n")) == [Named("hooks", "x")]


def test_a_way_is_walked_as_the_kernel_walks_it(tmp_path: Path) -> None:
    top = tmp_path / "root"
    (top / "a/b").mkdir(parents=True)
    for name, target in {"up": "a/b/..", "out": str(tmp_path), "loop": "loop/x", "a/root": f"{tmp_path}/link"}.items():
        (top / name).symlink_to(target)
    (tmp_path / "link").symlink_to("root")
    with Root.open(str(top)) as root:
        ways = {
            path: gitways.follow(root, path.format(tmp=tmp_path))
            for path in (
                "{tmp}/root/up/../x",
                "{tmp}/root/out/root/a",
                "{tmp}/root/loop",
                "{tmp}/root/../link/a/root/y",
            )
        }
        assert gitways.follow(root, f"{top}/a/./b//") == Way("a/b", (), None)
        assert gitways.follow(root, f"{top}/..") == Way(None, (), str(tmp_path))
        assert gitways.follow(root, f"{top}/new\n/\udc80/\0") == Way("new\n/\udc80/\0", (), None)
    assert list(ways.values()) == [
        Way("x", ("up",), None),
        Way("a", ("out",), None),
        Way(None, ("loop",) * 41, None),
        Way("y", ("a/root",), None),
    ]


def test_a_root_is_known_by_itself_under_whatever_name_the_way_comes_to_it(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "other").symlink_to("root")  # as where it is mounted in two places
    with Root.open(str(tmp_path / "other")) as root:
        assert gitways.follow(root, f"{tmp_path}/root/x") == Way("x", (), None)


def test_the_accounts_configuration_is_where_git_looks_for_it(tmp_path: Path) -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/x", "GIT_CONFIG_GLOBAL": "/g", "GIT_CONFIG_SYSTEM": "relative"}
    found = list(gitaccount.starts(environ))
    assert {"/etc/gitconfig", "/h/.gitconfig", "/h/.config/git/config", "/x/git/config", "/g"} <= set(found)
    assert "relative" not in found
    (tmp_path / "a").write_text("[include]\npath = b\n[core]\nworktree = x\nhooksPath = y\n")
    (tmp_path / "b").write_text(f"[include]\npath = {tmp_path}/a\n[include]\npath = missing\n")
    known = gitaccount.look(iter([f"{tmp_path}/a"]))
    assert known.files == (f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/missing")
    assert known.named == (Named("hooks", "y"),)


def test_nothing_but_a_file_is_read_and_not_a_huge_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "huge").write_bytes(b"x" * (gitaccount.BYTES + 1))
    (tmp_path / "fits").write_bytes(b"x" * gitaccount.BYTES)
    read = {name: gitaccount.text(f"{tmp_path}/{name}") for name in ("fifo", "huge", "", "missing", "\0")}
    assert set(read.values()) == {""}
    assert len(gitaccount.text(f"{tmp_path}/fits")) == gitaccount.BYTES


def test_a_look_that_hangs_is_left_alone_and_its_answer_is_taken_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SANDBOX_ACCOUNT_SECONDS", 0.01)
    monkeypatch.setattr(limits, "SANDBOX_ETC_SECONDS", 0.0)
    hung, calls = threading.Event(), list[str]()

    def look() -> str:
        calls.append("look")
        assert hung.wait(60)
        return "answer"

    one = Look(look, "nothing")
    assert [one.recall() for _ in range(3)] == ["nothing"] * 3
    assert calls == ["look"]
    hung.set()
    next(thread for thread in threading.enumerate() if thread.name == "codespace look").join(60)
    assert one.recall() == "answer"


def test_a_look_stands_until_it_is_asked_for_something_else() -> None:
    answers = iter("abc")
    one = Look(lambda: next(answers), "nothing")
    assert [one.recall(1), one.recall(1), one.recall(2), one.recall(2)] == ["a", "a", "b", "b"]


def test_a_look_that_no_thread_was_to_be_had_for_is_taken_later(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Look(lambda: "answer", "nothing")
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        assert one.recall(1) == "nothing"
    assert one.recall(2) == "answer"


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
