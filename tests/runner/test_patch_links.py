"""Patches to what a link, planted by a command as a rule, makes a protected path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import names
from codespace.errors import Refusal

from .test_patcher import Site, opened

LINKS = [
    (".vscode", "build", "build/tasks.json", "build/other"),
    (".vscode", ".", "tasks.json", "other"),
    (".vscode", "build/../deep", "deep/settings.json", "build/settings.json"),
    (".vscode/tasks.json", "../build/t", "build/t", "build/u"),
    (".claude", "build", "build/deep/settings.json", "built/settings.json"),
    (".mcp.json", "build/servers", "build/servers", "build/more"),
    (".MCP.json", "build/servers", "build/servers", "build/more"),
    ("x.code-workspace", "build/x", "build/x", "build/y"),
    (".git", "build/file", "build/file", "build/more"),
    (".hg", "build", "build/hgrc", "built/hgrc"),
    (".jj", "build", "build/repo/config.toml", "built/config.toml"),
    (".envrc", "build/[e]*", "build/[e]*", "build/e"),
]


async def refused(site: Site, *body: str) -> Refusal:
    before = site.names()
    with pytest.raises(Refusal) as refusal:
        await site.plan(*body)
    assert refusal.value.code == "PROTECTED_PATH"
    assert site.names() == before
    return refusal.value


@pytest.mark.parametrize(("link", "leads", "path", "other"), LINKS)
async def test_what_a_link_under_a_protected_name_leads_to_is_not_a_patchs_to_write(
    tmp_path: Path, link: str, leads: str, path: str, other: str
) -> None:
    async with opened(tmp_path) as site:
        await site.apply("*** Add File: first", "+x")  # the link comes while there is a helper
        (site.root / link).parent.mkdir(exist_ok=True)
        (site.root / link).symlink_to(leads)
        problem = await refused(site, f"*** Add File: {path}", "+x")
        assert link in problem.message
        assert "link" in problem.next_step
        await refused(site, "*** Update File: first", f"*** Move to: {path}", "-x", "+y")
        await site.plan(f"*** Add File: {other}", "+x")
        (site.root / link).unlink()
        await site.plan(f"*** Add File: {path}", "+x")


async def test_a_link_behind_a_link_is_followed_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        (site.root / "build").mkdir()
        (site.root / ".vscode").symlink_to("build")
        (site.root / "build/tasks.json").symlink_to("../deep/t")
        (site.root / "build/circle").symlink_to("circle")
        await refused(site, "*** Add File: deep/t", "+x")
        await refused(site, "*** Add File: build/launch.json", "+x")


async def test_a_link_that_leads_out_or_in_a_circle_keeps_no_patch(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        (site.root / ".vscode").symlink_to(tmp_path)
        (site.root / ".claude").symlink_to(".claude")
        await site.apply("*** Add File: tasks.json", "+x")


async def test_a_patch_is_not_taken_back_to_where_a_link_leads_by_now(tmp_path: Path) -> None:
    """The bytes were harmless where they lay, and what is undone would put them back."""
    async with opened(tmp_path) as site:
        (site.root / "build").mkdir()
        (site.root / "build/tasks.json").write_text("evil\n")
        for step in ("plan", "stage", "install", "verify", "finish"):
            body = ("*** Delete File: build/tasks.json",) if step == "plan" else ()
            await getattr(site, step)(*body)
        (site.root / ".vscode").symlink_to("build")
        with pytest.raises(Refusal) as refusal:
            await site.patcher.plan_undo(site.workspace, "op-bbbbbbbbbbbbbbbbbbbbbbbb", "op-" + "a" * 24)
        assert refusal.value.code == "PROTECTED_PATH"
        (site.root / ".vscode").unlink()
        await site.patcher.plan_undo(site.workspace, "op-bbbbbbbbbbbbbbbbbbbbbbbb", "op-" + "a" * 24)


@pytest.mark.parametrize("name", [".vscode", ".claude", ".mcp.json"])
async def test_a_link_that_leads_elsewhere_for_everybody_who_looks_lets_no_patch_by(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as site:
        (site.root / name).symlink_to("/proc/self/cwd/build")
        problem = await refused(site, "*** Add File: build/tasks.json", "+x")
        assert name in problem.message


async def test_a_hidden_link_is_not_named(tmp_path: Path) -> None:
    async with opened(tmp_path, hidden_paths=(".vscode",)) as site:
        (site.root / ".vscode").symlink_to("build")
        problem = await refused(site, "*** Add File: build/tasks.json", "+x")
        assert ".vscode" not in f"{problem.message}{problem.next_step}{problem.details}"


async def test_a_directory_with_a_name_of_many_links_is_looked_at_each_time(tmp_path: Path) -> None:
    chosen = {"protected_paths": ("/conf/*/run.json", "/**/never", "/conf/*/"), "git": "unprotected"}
    async with opened(tmp_path, **chosen) as site:
        (site.root / "conf/one").mkdir(parents=True)
        os.symlink("../build", site.root / "conf/two")
        os.symlink("../../other", site.root / "conf/one/run.json")
        await refused(site, "*** Add File: build/run.json", "+x")
        await refused(site, "*** Add File: other", "+x")
        await site.apply("*** Add File: fine", "+x")


async def test_what_a_link_makes_git_run_by_now_is_not_a_patchs_to_write_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the account's configuration names was looked up when the helper was started; a link came since."""
    monkeypatch.setattr(limits, "SANDBOX_ETC_SECONDS", 0)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text(f"[core]\nhooksPath = {tmp_path}/root/deep/tools/hooks\n")
    async with opened(tmp_path) as site:
        await site.plan("*** Add File: build/hooks/pre-commit", "+x")
        (site.root / "deep").mkdir()
        (site.root / "deep/tools").symlink_to("../build")
        await refused(site, "*** Add File: build/hooks/pre-commit", "+x")
        await site.plan("*** Add File: build/fine", "+x")


@pytest.mark.parametrize("name", [".claude/settings.json", ".cursor/rules/mcp.json", ".husky/pre-commit"])
async def test_what_a_link_in_a_protected_directory_leads_to_is_not_a_patchs_to_write(
    tmp_path: Path, name: str
) -> None:
    async with opened(tmp_path) as site:
        link = site.root / name
        link.parent.mkdir(parents=True)
        link.symlink_to(site.root / "build/settings.json")
        problem = await refused(site, "*** Add File: build/settings.json", "+x")
        assert name in problem.message
        await site.plan("*** Add File: build/other", "+x")
        link.unlink()
        await site.plan("*** Add File: build/settings.json", "+x")


async def test_no_patch_is_made_where_not_every_link_could_be_followed(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        for number in range(1_025):
            (site.root / f"mise.{number}.toml").symlink_to(f"build/{number}")
        problem = await refused(site, "*** Add File: fine", "+x")
        assert "not every link could be followed" in problem.message
        (site.root / "mise.0.toml").unlink()
        await site.plan("*** Add File: fine", "+x")
        await refused(site, "*** Add File: build/7", "+x")


async def test_globs_of_many_links_are_compared_with_a_patch_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        for number in range(200):
            (site.root / f"mise.{number}.toml").symlink_to(f"build/{number}")
        before = names._compiled.cache_info().misses
        await site.plan("*** Add File: fine", "+x")
        assert names._compiled.cache_info().misses - before < 100
