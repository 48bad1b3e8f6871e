"""What `doctor` says of limits that the machine carries, and of the one that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespace.cli.finding import Finding
from codespace.cli.witnesses import findings
from codespace.sandbox.box import Sandbox
from codespace.sandbox.limits import Mechanisms
from codespace.sandbox.probe import Standing
from codespace.sandbox.spawn import Equipment
from codespace.settings import Settings, load

from ..settings.home import Home


class Known(Sandbox):
    """A sandbox whose probe has concluded already."""

    def __init__(self, standing: Standing) -> None:
        super().__init__()
        self._known = standing


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = Home(tmp_path)
    home.write(home.workspace(profile="workspace-write"))
    return load(home.environ)


def of_commands(settings: Settings, mechanisms: Mechanisms) -> Finding:
    sandbox = Known(Standing("linux-sandbox", Equipment("/usr/bin/bwrap", mechanisms)))
    return next(found for found in findings(settings, sandbox) if found.subject == "commands in app")


def test_a_limit_that_something_carries_is_told_with_what_carries_it(settings: Settings) -> None:
    found = of_commands(settings, Mechanisms(None, None, pid_max=False, nproc=True))
    assert (found.verdict, found.fix) == ("pass", "")
    assert "pids by nproc" in found.found


def test_a_number_of_processes_that_nothing_holds_is_a_limit_with_its_remedy(settings: Settings) -> None:
    found = of_commands(settings, Mechanisms(None, None, pid_max=False))
    assert found.verdict == "limit"
    assert "nothing holds the number of their processes" in found.found
    assert "ordinary user" in found.fix


def test_a_workspace_in_a_container_has_no_commands_that_a_sandbox_could_be_praised_for(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write(
        home.workspace(profile="workspace-write", environment="box")
        | {"environments": {"box": {"kind": "linux-container"}}}
    )
    found = of_commands(load(home.environ), Mechanisms(None, None, pid_max=False, nproc=True))
    assert found.verdict == "limit"
    assert "no execution path" in found.found
