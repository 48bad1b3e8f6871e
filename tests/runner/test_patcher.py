"""The patch transaction through the real helper process, and what happens when the world interferes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from codespace import limits
from codespace.contract import PatchReport, Workspace
from codespace.errors import Refusal
from codespace.runner.patch.patcher import HELPER, Patcher

UPDATE = "*** Begin Patch\n*** Update File: a\n@@\n-one\n+ONE\n*** End Patch"
OPERATION = "op-aaaaaaaaaaaaaaaaaaaaaaaa"


@dataclass
class Site:
    root: Path
    state: Path
    patcher: Patcher
    workspace: Workspace

    async def plan(self, *body: str, operation: str = OPERATION, **expected: str) -> None:
        patch = "\n".join(("*** Begin Patch", *body, "*** End Patch"))
        await self.patcher.plan(self.workspace, operation, patch, expected)

    async def stage(self) -> None:
        await self.patcher.stage(self.workspace, OPERATION)

    async def install(self) -> PatchReport:
        return await self.patcher.install(self.workspace, OPERATION)

    async def verify(self) -> PatchReport:
        return await self.patcher.verify(self.workspace, OPERATION)

    async def restore(self) -> PatchReport:
        return await self.patcher.restore(self.workspace, OPERATION)

    async def finish(self) -> PatchReport:
        return await self.patcher.finish(self.workspace, OPERATION)

    async def settle(self) -> tuple[str, PatchReport] | None:
        return await self.patcher.settle(self.workspace, OPERATION)

    async def apply(self, *body: str) -> None:
        await self.plan(*body)
        await self.stage()
        assert (await self.install()).clean
        assert (await self.verify()).clean
        assert (await self.finish()).clean

    async def kill(self) -> None:
        """Kill the helper and return once it is dead."""
        ended = os.pidfd_open(self.helper())
        try:
            signal.pidfd_send_signal(ended, signal.SIGKILL)
            with trio.fail_after(60):
                await trio.lowlevel.wait_readable(ended)
        finally:
            os.close(ended)

    def helper(self) -> int:
        return self.patcher.helpers()[self.workspace.id]

    def names(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def journal(self) -> Path:
        return self.state / "journal" / OPERATION


WITHOUT_FLAGS = (sys.executable, "-I", "-X", "utf8", str(Path(__file__).parents[1] / "helper/without_flags.py"))


@asynccontextmanager
async def opened(tmp_path: Path, argv: Sequence[str] = HELPER, **options: object) -> AsyncIterator[Site]:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    workspace = Workspace("w", str(root), "workspace-write", **options)  # type: ignore[arg-type]
    async with Patcher(str(tmp_path / "state"), argv=argv) as patcher:
        yield Site(root, tmp_path / "state", patcher, workspace)


@pytest.fixture(params=[HELPER, WITHOUT_FLAGS], ids=["exchange", "steps"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """Lend a root, once with a filesystem that exchanges names and once with one that does not."""
    async with opened(tmp_path, argv=request.param) as made:
        yield made


def version(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


async def test_a_file_over_the_default_limit_is_verified_where_the_operator_raised_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FILE_BYTES", 1)
    (site.root / "a").write_text("one\n")
    await site.apply("*** Update File: a", "-one", "+ONE")


# --- what is kept ---


async def test_an_update_keeps_mode_and_attributes_and_breaks_a_hard_link(site: Site) -> None:
    file = site.root / "a"
    file.write_text("one\n")
    file.chmod(0o751)
    os.setxattr(file, "user.note", b"kept")
    os.link(file, site.root / "other")
    await site.apply("*** Update File: a", "-one", "+ONE")
    assert file.read_text() == "ONE\n"
    assert file.stat().st_mode & 0o7777 == 0o751
    assert os.getxattr(file, "user.note") == b"kept"
    assert (site.root / "other").read_text() == "one\n"


async def test_a_move_takes_mode_and_attributes_along(site: Site) -> None:
    file = site.root / "a"
    file.write_text("one\n")
    file.chmod(0o710)
    os.setxattr(file, "user.note", b"kept")
    await site.apply("*** Update File: a", "*** Move to: deep/b", "-one", "+ONE")
    assert site.names() == {"deep", "deep/b"}
    assert (site.root / "deep/b").stat().st_mode & 0o7777 == 0o710
    assert os.getxattr(site.root / "deep/b", "user.note") == b"kept"


async def test_a_new_file_and_its_directories_get_the_umask_of_the_daemon(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        async with opened(tmp_path) as site:
            await site.apply("*** Add File: d/a", "+one")
            assert (site.root / "d/a").stat().st_mode & 0o7777 == 0o640
            assert (site.root / "d").stat().st_mode & 0o7777 == 0o750
    finally:
        os.umask(before)


async def test_two_files_can_be_swapped(site: Site) -> None:
    (site.root / "a").write_text("A\n")
    (site.root / "b").write_text("B\n")
    await site.apply(
        *("*** Update File: a", "*** Move to: c", " A"),
        *("*** Update File: b", "*** Move to: a", " B"),
        *("*** Update File: c", "*** Move to: b", " A"),
    )
    assert {name: (site.root / name).read_text() for name in site.names()} == {"a": "B\n", "b": "A\n"}


async def test_a_check_alone_writes_nothing_at_all(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE")
    await site.finish()
    assert site.names() == {"a"}
    assert not any((site.state / "journal").iterdir())


async def test_the_journal_of_an_applied_patch_keeps_the_bytes_before(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    (site.root / "big").write_text("x\n" * 100_000)
    await site.apply("*** Update File: big", "@@", "-x", "+y", "*** Update File: a", "-one", "+ONE")
    assert site.names() == {"a", "big"}
    kept = list((site.journal() / "before").iterdir())
    assert [file.stat().st_size for file in kept] == [200_000]
    inline = json.loads((site.journal() / "manifest.json").read_bytes())["before"]
    assert [base64.b64decode(data) for data in inline.values()] == [b"one\n"]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in (*kept, site.journal() / "manifest.json"))


async def test_the_bytes_before_of_many_small_files_are_kept_in_one(site: Site) -> None:
    names = [f"f{number}" for number in range(30)]
    for name in names:
        (site.root / name).write_text("one\n" * 1_000)
    await site.apply(*(line for name in names for line in (f"*** Update File: {name}", "@@", "-one", "+ONE")))
    inline = json.loads((site.journal() / "manifest.json").read_bytes())["before"]
    assert len(inline) == len(names)
    assert not (site.journal() / "before").exists()


# --- versions ---


async def test_an_expected_version_of_an_untouched_file_refuses_the_patch(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    (site.root / "other").write_text("seen\n")
    with pytest.raises(Refusal) as refused:
        await site.plan("*** Update File: a", "-one", "+ONE", other=version(b"unseen\n"))
    assert refused.value.code == "VERSION_CONFLICT"
    assert refused.value.details == {
        "path": "other",
        "expected": version(b"unseen\n"),
        "actual": version(b"seen\n"),
    }


@pytest.mark.parametrize(("there", "expected"), [(None, version(b"seen\n")), (b"seen\n", "absent")])
async def test_an_expected_version_is_refused_where_a_file_is_gone_or_there_again(
    site: Site, there: bytes | None, expected: str
) -> None:
    (site.root / "a").write_text("one\n")
    if there is not None:
        (site.root / "other").write_bytes(there)
    actual = "absent" if there is None else version(there)
    with pytest.raises(Refusal) as refused:
        await site.plan("*** Update File: a", "-one", "+ONE", other=expected)
    assert refused.value.code == "VERSION_CONFLICT"
    assert refused.value.details == {"path": "other", "expected": expected, "actual": actual}


async def test_a_version_conflict_is_said_before_a_chunk_without_a_place(site: Site) -> None:
    (site.root / "a").write_text("changed\n")
    with pytest.raises(Refusal) as refused:
        await site.plan("*** Update File: a", "-one", "+ONE", a=version(b"one\n"))
    assert refused.value.code == "VERSION_CONFLICT"


@pytest.mark.parametrize("known", [True, False])
async def test_who_read_the_file_as_it_is_is_not_sent_to_read_it_again(site: Site, known: bool) -> None:
    (site.root / "a").write_text("one\n")
    (site.root / "b").write_text("two\n")
    of = "a" if known else "b"
    with pytest.raises(Refusal) as refused:
        await site.plan("*** Update File: a", "-won", "+ONE", **{of: version((site.root / of).read_bytes())})
    assert refused.value.code == "INVALID_PATCH"
    assert ("Read the named file again" in refused.value.next_step) is not known
    assert ("the file is as you read it" in refused.value.next_step) is known


async def test_expected_versions_that_hold_let_the_patch_through(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE", a=version(b"one\n"), nothing="absent")


# --- third parties ---


async def test_a_file_changed_after_the_plan_is_swapped_back_and_nothing_of_the_patch_stays(site: Site) -> None:
    for name in "ab":
        (site.root / name).write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE", "*** Update File: b", "-one", "+ONE")
    await site.stage()
    (site.root / "b").write_text("theirs\n")
    report = await site.install()
    assert report.refusal is not None
    assert report.refusal["code"] == "VERSION_CONFLICT"
    assert report.refusal["details"]["actual"] == version(b"theirs\n")
    restored = await site.restore()
    assert restored == PatchReport(clean=True)
    await site.finish()
    assert {name: (site.root / name).read_text() for name in site.names()} == {"a": "one\n", "b": "theirs\n"}
    assert not site.journal().exists()


async def test_a_file_that_appeared_where_one_is_added_is_left_alone(site: Site) -> None:
    await site.plan("*** Add File: d/a", "+one")
    await site.stage()
    (site.root / "d").mkdir()
    (site.root / "d/a").write_text("theirs\n")
    report = await site.install()
    assert report.refusal is not None
    assert report.refusal["code"] == "VERSION_CONFLICT"
    assert (await site.restore()).clean
    await site.finish()
    assert site.names() == {"d", "d/a"}
    assert (site.root / "d/a").read_text() == "theirs\n"


async def test_a_file_changed_before_it_is_deleted_is_moved_back(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Delete File: a")
    await site.stage()
    (site.root / "a").write_text("theirs\n")
    assert not (await site.install()).clean
    assert (await site.restore()).clean
    await site.finish()
    assert (site.root / "a").read_text() == "theirs\n"
    assert site.names() == {"a"}


async def test_a_file_deleted_by_somebody_else_stays_deleted(site: Site) -> None:
    for name in "ab":
        (site.root / name).write_text("one\n")
    await site.plan("*** Delete File: a", "*** Update File: b", "-one", "+ONE")
    await site.stage()
    (site.root / "a").unlink()
    assert not (await site.install()).clean
    assert (await site.restore()).clean
    await site.finish()
    assert {name: (site.root / name).read_text() for name in site.names()} == {"b": "one\n"}


async def test_a_mode_changed_after_the_plan_is_a_conflict(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE")
    await site.stage()
    (site.root / "a").chmod(0o600)
    assert not (await site.install()).clean
    assert (await site.restore()).clean
    await site.finish()
    assert (site.root / "a").stat().st_mode & 0o777 == 0o600
    assert (site.root / "a").read_text() == "one\n"


async def test_restore_leaves_alone_what_somebody_changed_after_the_install(site: Site) -> None:
    for name in "ab":
        (site.root / name).write_text("one\n")
    await site.plan(
        *("*** Update File: a", "-one", "+ONE"), *("*** Update File: b", "-one", "+ONE"), *("*** Add File: d/c", "+c")
    )
    await site.stage()
    assert (await site.install()).clean
    (site.root / "b").write_text("theirs\n")
    seen = await site.verify()
    assert seen.kept == ("b",)
    restored = await site.restore()
    assert (restored.clean, restored.kept) == (False, ("b",))
    await site.finish()
    assert {name: (site.root / name).read_text() for name in site.names()} == {"a": "one\n", "b": "theirs\n"}
    assert site.journal().exists(), "the bytes before are still needed by whoever decides"


async def test_a_directory_that_somebody_uses_by_now_is_not_taken_away(site: Site) -> None:
    await site.plan("*** Add File: d/e/a", "+one")
    await site.stage()
    assert (await site.install()).clean
    (site.root / "d/theirs").write_text("x")
    assert (await site.restore()).clean
    await site.finish()
    assert site.names() == {"d", "d/theirs"}


async def test_bytes_written_into_the_replaced_file_are_rescued_and_named(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    with (site.root / "a").open("a") as still_open:
        await site.plan("*** Update File: a", "-one", "+ONE")
        await site.stage()
        assert (await site.install()).clean
        still_open.write("late\n")
        still_open.flush()
        assert (await site.verify()).clean
        finished = await site.finish()
    assert len(finished.rescued) == 1
    assert (site.journal() / finished.rescued[0]).read_text() == "one\nlate\n"
    assert site.names() == {"a"}


async def test_a_staged_file_that_was_replaced_is_never_called_applied(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE")
    await site.stage()
    (staged,) = (name for name in site.names() if name.endswith(".staged"))
    (site.root / staged).unlink()
    (site.root / staged).write_text("evil\n")
    report = await site.install()
    assert not report.clean
    restored = await site.restore()
    assert restored.kept == ("a",)
    assert (site.root / "a").read_text() == "evil\n", "it may be an editor's own save, so it is left and reported"


async def test_a_root_that_was_replaced_is_refused(site: Site, tmp_path: Path) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE")
    site.root.rename(tmp_path / "elsewhere")
    site.root.mkdir()
    with pytest.raises(Refusal) as refused:
        await site.stage()
    assert (refused.value.details or {})["root_replaced"]
    assert site.names() == set()


@pytest.mark.parametrize("body", [("*** Update File: d/a", "-one", "+ONE"), ("*** Delete File: d/a",)])
@pytest.mark.parametrize("becomes", ["link", "file", "nothing"])
async def test_a_directory_that_turns_into_something_else_ends_in_a_clean_restore(
    site: Site, tmp_path: Path, body: tuple[str, ...], becomes: str
) -> None:
    (tmp_path / "outside").mkdir()
    for folder in (site.root / "d", tmp_path / "outside"):
        folder.mkdir(exist_ok=True)
        (folder / "a").write_text("one\n")
    await site.plan(*body, "*** Add File: b", "+b")
    await site.stage()
    (site.root / "d").rename(tmp_path / "moved")
    if becomes == "link":
        (site.root / "d").symlink_to(tmp_path / "outside")
    elif becomes == "file":
        (site.root / "d").write_text("theirs\n")
    report = await site.install()
    assert report.refusal is not None
    assert (await site.restore()).clean
    await site.finish()
    assert {path.name for path in (tmp_path / "outside").iterdir()} == {"a"}
    assert (tmp_path / "outside/a").read_text() == "one\n"
    assert (tmp_path / "moved/a").read_text() == "one\n"
    assert not (site.root / "b").exists()


# --- what is refused before anything is written ---


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        "sub/.GIT/hooks/pre-commit",
        ".git",
        ".mcp.json",
        ".MCP.json",
        ".cursor/rules/a",
        ".vscode/tasks.json",
        ".envrc",
        ".gitmodules",
        ".claude/settings.json",
        ".github/hooks/any.json",
        ".clinerules/hooks/TaskStart",
        ".cline/hooks/TaskStart",
        ".qwen/settings.json",
        ".factory/mcp.json",
        ".kilocode/mcp.json",
        ".kilo/kilo.json",
        "kilo.jsonc",
        ".vimrc",
        ".gvimrc",
        ".dir-locals-2.el",
        "mise.toml",
        ".mise.local.toml",
        ".mise/config.toml",
        ".config/mise/conf.d/any.toml",
        ".hg/hgrc",
        "sub/.hg/hgrc",
        ".sl/config",
        "sub/deep/.jj/repo/config.toml",
        "bare.git/hooks/post-update",
        ".codespace-a.staged",
        "secret/new",
    ],
)
async def test_protected_and_hidden_paths_are_refused_whether_they_exist_or_not(tmp_path: Path, path: str) -> None:
    async with opened(tmp_path, hidden_paths=("secret/",)) as site:
        bare = site.root / "bare.git"
        for part in ("objects", "refs", "hooks"):
            (bare / part).mkdir(parents=True)
        (bare / "HEAD").write_text("ref: refs/heads/main\n")
        before = site.names()
        with pytest.raises(Refusal) as refused:
            await site.plan(f"*** Add File: {path}", "+x")
        assert refused.value.code == "PROTECTED_PATH"
        assert site.names() == before


async def test_what_is_protected_at_the_root_may_be_named_so_elsewhere(site: Site) -> None:
    await site.apply("*** Add File: examples/.mcp.json", "+{}", "*** Add File: .gitignore", "+build/")
    assert "examples/.mcp.json" in site.names()


async def test_what_the_configuration_of_the_repository_has_git_read_or_run_is_protected(site: Site) -> None:
    (site.root / ".git").mkdir()
    (site.root / ".git" / "config").write_text("[include]\npath = ../.gitconfig\n[core]\nhooksPath = tools/hooks\n")
    for path in (".gitconfig", "tools/hooks/pre-commit", "Tools/Hooks/x"):
        with pytest.raises(Refusal) as refused:
            await site.plan(f"*** Add File: {path}", "+x")
        assert refused.value.code == "PROTECTED_PATH"
    await site.apply("*** Add File: tools/fine", "+x")


async def test_the_configuration_of_a_repository_below_the_root_counts_as_well(site: Site) -> None:
    for config in ("deep/.git", ".git/modules/module"):
        (site.root / config).mkdir(parents=True)
        (site.root / config / "config").write_text("[core]\nhooksPath = tools/hooks\n")
    (site.root / "module").mkdir()
    (site.root / "module" / ".git").write_text("gitdir: ../.git/modules/module\n")
    for above in ("deep", "module"):
        with pytest.raises(Refusal) as refused:
            await site.plan(f"*** Add File: {above}/tools/hooks/pre-commit", "+x")
        assert refused.value.code == "PROTECTED_PATH"
    await site.apply(
        *("*** Add File: deep/tools/fine", "+x", "*** Add File: module/tools/fine", "+x"),
        *("*** Add File: tools/hooks/pre-commit", "+x"),
    )


async def test_a_worktree_goes_by_the_configuration_of_its_repository(site: Site, tmp_path: Path) -> None:
    own = tmp_path / "elsewhere" / ".git" / "worktrees" / "tree"
    own.mkdir(parents=True)
    (own / "gitdir").write_text(f"{site.root}/.git\n")
    (own / "commondir").write_text("../..\n")
    (own.parents[1] / "config").write_text("[core]\nhooksPath = tools/hooks\n")
    (site.root / ".git").write_text(f"gitdir: {own}\n")
    with pytest.raises(Refusal) as refused:
        await site.plan("*** Add File: tools/hooks/pre-commit", "+x")
    assert refused.value.code == "PROTECTED_PATH"
    await site.apply("*** Add File: tools/fine", "+x")


async def test_a_git_directory_cannot_be_made_from_parts(site: Site) -> None:
    await site.apply("*** Add File: x/objects/a", "+1")
    with pytest.raises(Refusal) as refused:
        await site.plan("*** Add File: x/HEAD", "+ref: refs/heads/main", "*** Add File: x/refs/a", "+1")
    assert refused.value.code == "PROTECTED_PATH"


@pytest.mark.parametrize(
    "names", [("head", "Objects", "Refs"), ("HEAD", "objects", "REFS"), ("CommonDir", "Head", "x")]
)
async def test_a_git_directory_cannot_be_made_in_letters_that_a_filesystem_takes_for_the_same(
    site: Site, names: tuple[str, str, str]
) -> None:
    head, objects, refs = names
    parts = (f"*** Add File: x/{head}", "+1", f"*** Add File: x/{objects}/a", "+1", f"*** Add File: x/{refs}/a", "+1")
    with pytest.raises(Refusal) as refused:
        await site.plan(*(parts if refs != "x" else (*parts[:2], f"*** Add File: x/{objects}", "+1")))
    assert refused.value.code == "PROTECTED_PATH"


async def test_git_unprotected_and_an_own_list_are_the_operators_to_choose(tmp_path: Path) -> None:
    async with opened(tmp_path, git="unprotected", protected_paths=("*.lock",)) as site:
        await site.apply("*** Add File: .git/config", "+x", "*** Add File: .mcp.json", "+{}")
        with pytest.raises(Refusal) as refused:
            await site.plan("*** Add File: deep/uv.lock", "+x")
        assert refused.value.code == "PROTECTED_PATH"


async def test_a_hidden_file_is_absent_to_a_patch(tmp_path: Path) -> None:
    async with opened(tmp_path, hidden_paths=("*.key",)) as site:
        (site.root / "a.key").write_text("SECRET\n")
        answers = []
        for name in ("a.key", "b.key"):
            with pytest.raises(Refusal) as refused:
                await site.plan(f"*** Update File: {name}", "-SECRET", "+x")
            answers.append((refused.value.code, refused.value.message.replace(name, "")))
        assert answers[0] == answers[1]
        assert answers[0][0] == "FILE_NOT_FOUND"
        await site.plan("*** Add File: c", "+x", **{"a.key": "absent"})


@pytest.mark.parametrize(
    "body",
    [
        ("*** Delete File: f", "*** Add File: f/g", "+x"),
        ("*** Delete File: d/g", "*** Add File: d", "+x"),
        ("*** Add File: n", "+x", "*** Add File: n/m", "+x"),
    ],
)
async def test_a_file_never_becomes_a_directory_nor_a_directory_a_file(site: Site, body: tuple[str, ...]) -> None:
    (site.root / "f").write_text("x\n")
    (site.root / "d").mkdir()
    (site.root / "d/g").write_text("x\n")
    with pytest.raises(Refusal):
        await site.plan(*body)
    assert site.names() == {"f", "d", "d/g"}


async def test_a_patch_over_its_limits_is_refused_by_name(site: Site) -> None:
    with pytest.raises(Refusal) as refused:
        await site.plan("*** Add File: a", "+" + "x" * limits.PATCH_BYTES)
    details = refused.value.details or {}
    assert (refused.value.code, details["limit"]) == ("LIMIT_REACHED", "patch_bytes")
    assert details["setting"] == "limits.patch_bytes"  # what the usual next step sends the caller to
    with pytest.raises(Refusal) as refused:
        await site.plan(*(f"*** Add File: {number}" for number in range(limits.PATCH_OPERATIONS + 1)))
    assert (refused.value.code, (refused.value.details or {})["limit"]) == ("LIMIT_REACHED", "PATCH_OPERATIONS")


async def test_staging_that_fails_leaves_nothing(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    (site.root / "d").mkdir()
    (site.root / "d/b").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE", "*** Update File: d/b", "-one", "+ONE")
    (site.root / "d/b").unlink()
    (site.root / "d").rmdir()
    (site.root / "d").write_text("a file now")
    with pytest.raises(Refusal):
        await site.stage()
    assert site.names() == {"a", "d"}
    assert not site.journal().exists()


# --- a helper that dies, hangs or is slow ---


async def test_a_helper_that_was_killed_is_replaced(site: Site) -> None:
    await site.apply("*** Add File: a", "+one")
    first = site.helper()
    os.kill(first, signal.SIGKILL)  # not waited for: it may still look alive to the next call
    with trio.fail_after(60):
        await site.plan("*** Add File: b", "+one")
    assert site.helper() != first


async def test_a_plan_lost_with_its_helper_is_a_clean_refusal_at_stage(site: Site) -> None:
    await site.plan("*** Add File: a", "+one")
    await site.kill()
    with pytest.raises(Refusal) as refused:
        await site.stage()
    assert "Nothing was written" in refused.value.message
    assert site.names() == set()


async def test_a_helper_lost_after_staging_installs_nothing_and_leaves_nothing(site: Site) -> None:
    await site.plan("*** Add File: d/a", "+one")
    await site.stage()
    await site.kill()
    with pytest.raises(Refusal) as refused:
        await site.install()
    assert refused.value.code != "OUTCOME_UNKNOWN"
    settled = await site.settle()
    assert settled == ("rejected", PatchReport(clean=True))
    await site.finish()
    assert site.names() == set()
    assert not site.journal().exists()


async def test_an_install_without_an_answer_is_unknown_until_it_is_settled(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path) as site:
        (site.root / "a").write_text("one\n")
        await site.plan("*** Update File: a", "-one", "+ONE")
        await site.stage()
        os.kill(site.helper(), signal.SIGSTOP)
        codes: list[str] = []

        async def install() -> None:
            with pytest.raises(Refusal) as refused:
                await site.install()
            codes.append(refused.value.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(install)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(limits.INSTALL_SECONDS + 1)
        assert codes == ["OUTCOME_UNKNOWN"]
        assert await site.settle() == ("rejected", PatchReport(clean=True))
        await site.finish()
        assert (site.root / "a").read_text() == "one\n"
        assert site.names() == {"a"}


async def test_a_hanging_plan_is_refused_and_the_helper_replaced(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as site:
        await site.plan("*** Add File: a", "+one")
        first = site.helper()
        os.kill(first, signal.SIGSTOP)
        codes: list[str] = []

        async def plan() -> None:
            with pytest.raises(Refusal) as refused:
                await site.plan("*** Add File: b", "+one")
            codes.append(refused.value.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(plan)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(limits.PLAN_SECONDS + 1)
        assert codes == ["TIMEOUT"]
        await site.plan("*** Add File: b", "+one")
        assert site.helper() != first


async def test_the_reply_of_a_cancelled_plan_reaches_nobody_else(site: Site) -> None:
    await site.plan("*** Add File: first", "+one")
    helper = site.helper()
    os.kill(helper, signal.SIGSTOP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.plan, "*** Add File: cancelled", "+one")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.kill(helper, signal.SIGCONT)
    with trio.fail_after(60):
        patch = "*** Begin Patch\n*** Add File: mine\n+one\n*** End Patch"
        plan = await site.patcher.plan(site.workspace, OPERATION, patch, {})
    assert plan.files == ("mine",)
    assert site.helper() == helper, "a cancelled caller costs nobody a helper"


async def test_a_cancelled_install_still_waits_for_its_answer(site: Site) -> None:
    await site.plan("*** Add File: a", "+one")
    await site.stage()
    helper = site.helper()
    os.kill(helper, signal.SIGSTOP)
    reports: list[PatchReport] = []

    async def install() -> None:
        reports.append(await site.install())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(install)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        os.kill(helper, signal.SIGCONT)
    assert reports == [PatchReport(clean=True)]
    assert (await site.verify()).clean


async def test_leaving_ends_a_helper_that_does_not_listen(tmp_path: Path, mock_clock: MockClock) -> None:
    leaving, left = trio.Event(), trio.Event()
    helpers: list[int] = []

    async def use() -> None:
        async with opened(tmp_path) as site:
            await site.plan("*** Add File: a", "+one")
            helpers.append(site.helper())
            os.kill(site.helper(), signal.SIGSTOP)
            leaving.set()
        left.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        await leaving.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not left.is_set()
        mock_clock.jump(limits.HELPER_STOP_SECONDS + 0.1)
    assert left.is_set()
    assert not Path(f"/proc/{helpers[0]}").exists()


# --- settling ---


async def test_a_patch_whose_helper_died_after_the_install_is_settled_as_applied(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE", "*** Add File: d/b", "+b")
    await site.stage()
    await site.install()
    await site.kill()
    assert await site.settle() == ("applied", PatchReport(clean=True))
    assert site.names() == {"a", "d", "d/b"}
    await site.finish()
    assert await site.settle() == ("applied", PatchReport(clean=True))


async def test_an_operation_without_a_journal_has_nothing_to_settle(site: Site) -> None:
    assert await site.settle() is None


async def test_what_was_settled_stays_settled_until_it_is_finished(site: Site) -> None:
    for name in "ab":
        (site.root / name).write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE", "*** Update File: b", "-one", "+ONE")
    await site.stage()
    await site.install()
    await site.kill()
    (site.root / "a").write_text("theirs\n")
    first = await site.settle()
    assert first is not None
    assert (first[0], first[1].kept) == ("failed_partial", ("a",))
    (site.root / "a").write_text("theirs again\n")
    assert await site.settle() == first
    assert {name: (site.root / name).read_text() for name in site.names()} == {"a": "theirs again\n", "b": "one\n"}


# --- what a filesystem cannot do ---


@pytest.mark.parametrize(("argv", "atomic"), [(HELPER, True), (WITHOUT_FLAGS, False)], ids=["exchange", "steps"])
async def test_whether_names_are_exchanged_in_one_step_is_known_after_the_first_patch(
    argv: Sequence[str], atomic: bool, tmp_path: Path
) -> None:
    async with opened(tmp_path, argv=argv) as site:
        (site.root / "a").write_text("one\n")
        assert site.patcher.atomic(site.workspace) is None
        await site.apply("*** Update File: a", "-one", "+ONE")
        assert site.patcher.atomic(site.workspace) is atomic


async def test_a_directory_that_was_moved_away_does_not_keep_what_was_staged_in_it(site: Site) -> None:
    (site.root / "d").mkdir()
    (site.root / "d/a").write_text("one\n")
    await site.plan("*** Update File: d/a", "-one", "+ONE")
    await site.stage()
    (site.root / "d").rename(site.root / "elsewhere")
    assert not (await site.install()).clean
    await site.restore()
    await site.finish()
    assert site.names() == {"elsewhere", "elsewhere/a"}
    assert (site.root / "elsewhere/a").read_text() == "one\n"


async def test_a_stop_whose_time_is_over_does_not_wait_for_a_helper_that_hangs(site: Site) -> None:
    (site.root / "a").write_text("one\n")
    await site.plan("*** Update File: a", "-one", "+ONE")
    os.kill(site.helper(), signal.SIGSTOP)
    with trio.fail_after(60), trio.CancelScope() as caller:
        async with trio.open_nursery() as nursery:

            async def stage() -> None:
                with pytest.raises(Refusal):
                    await site.stage()

            nursery.start_soon(stage)
            await trio.testing.wait_all_tasks_blocked(0.05)
            caller.cancel()
            site.patcher.cut_off()


async def test_the_helper_that_reads_journals_elsewhere_ends_with_the_last_undo_that_it_planned(tmp_path: Path) -> None:
    async with opened(tmp_path) as site, Patcher(str(tmp_path / "other")) as other:
        (site.root / "a").write_text("one\n")
        await site.apply("*** Update File: a", "@@", "-one", "+two")
        looked, undo = f"op-{'b' * 24}", f"op-{'c' * 24}"
        for operation in (looked, undo):
            await other.plan_undo(site.workspace, operation, OPERATION, str(site.state))
        await other.finish(site.workspace, looked)
        await other.stage(site.workspace, undo)
        assert (await other.install(site.workspace, undo)).clean
        assert (await other.verify(site.workspace, undo)).clean
        assert (await other.finish(site.workspace, undo)).clean
        assert (site.root / "a").read_text() == "one\n"
        assert not [seat for seat in other._seats.values() if seat.channel is not None and seat.channel.usable]
