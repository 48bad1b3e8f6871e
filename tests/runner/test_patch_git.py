"""Patches to what the host's git runs by a way through links, or by configuration that lies outside of the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespace.errors import Refusal

from .test_patcher import Site, opened


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lend the account a home, with a root beside it that holds a repository and a link."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    for folder in (".git/hooks", "scripts/hooks", "deep/.git", "deep/scripts/hooks"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    (tmp_path / "root/deep/tools").symlink_to("../scripts")
    return tmp_path / "home"


async def refused(site: Site, *paths: str) -> None:
    for path in paths:
        with pytest.raises(Refusal) as refusal:
            await site.plan(f"*** Add File: {path}", "+x")
        assert refusal.value.code == "PROTECTED_PATH", path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[core]\nhooksPath = deep/tools/hooks\n", "scripts/hooks/pre-commit"),
        ("[core]\nhooksPath = deep/tools/../scripts/hooks\n", "scripts/hooks/pre-push"),
        ("[include]\npath = ../deep/tools/more\n", "scripts/more"),
        ("[core]\nfsmonitor = deep/tools/program --fast\n", "scripts/program"),
        ('[filter "x"]\nclean = python3 -u scripts/clean.py %f\n', "scripts/clean.py"),
        ("[alias]\nx = !scripts/program\n", "scripts/program"),
    ],
)
async def test_what_the_configuration_names_through_links_is_not_a_patchs_to_write(
    home: Path, tmp_path: Path, text: str, path: str
) -> None:
    async with opened(tmp_path) as site:
        (site.root / ".git/config").write_text(text)
        await refused(site, path)
        await site.apply("*** Add File: fine", "+x")


async def test_what_a_link_among_the_hooks_leads_to_is_not_a_patchs_to_write(home: Path, tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        (site.root / ".git/hooks/pre-commit").symlink_to("../../scripts/check")
        await refused(site, "scripts/check")
        await site.apply("*** Add File: scripts/fine", "+x")


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("[core]\nhooksPath = scripts/hooks\n", ("scripts/hooks/pre-commit", "deep/scripts/hooks/pre-commit")),
        ("[core]\nhooksPath = deep/tools/hooks\n", ("scripts/hooks/pre-commit",)),
        ("[include]\npath = ../root/scripts/more\n", ("scripts/more",)),
        ("[include]\npath = more\n", ("scripts/program",)),
    ],
)
async def test_what_the_accounts_configuration_names_is_not_a_patchs_to_write(
    home: Path, tmp_path: Path, text: str, paths: tuple[str, ...]
) -> None:
    (home / ".gitconfig").write_text(text)
    (home / "more").write_text("[core]\nfsmonitor = scripts/program\n")
    async with opened(tmp_path) as site:
        await refused(site, *paths)
        await site.apply("*** Add File: fine", "+x")


async def test_the_accounts_configuration_is_not_a_patchs_to_write_where_it_lies_in_the_workspace(
    home: Path, tmp_path: Path
) -> None:
    (home / ".gitconfig").symlink_to("../root/dots/gitconfig")
    async with opened(tmp_path) as site:
        await refused(site, "dots/gitconfig")


async def test_what_a_file_outside_names_that_the_repository_includes_is_not_a_patchs_to_write(
    home: Path, tmp_path: Path
) -> None:
    (home / "work").write_text("[core]\nhooksPath = scripts/hooks\n")
    async with opened(tmp_path) as site:
        (site.root / ".git/config").write_text("[include]\npath = ~/work\n")
        await refused(site, "scripts/hooks/pre-commit")


async def test_without_protection_of_git_nothing_of_it_is_kept_from_patches(home: Path, tmp_path: Path) -> None:
    (home / ".gitconfig").write_text("[core]\nhooksPath = scripts/hooks\n")
    async with opened(tmp_path, git="unprotected") as site:
        await site.apply("*** Add File: scripts/hooks/pre-commit", "+x")
