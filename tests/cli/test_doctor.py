"""How `codespace doctor` puts a finding into a line."""

from __future__ import annotations

from codespace.cli.doctor import line
from codespace.cli.finding import Finding


def test_a_long_subject_does_not_run_into_what_was_found() -> None:
    assert line(Finding("pass", "workspace my-project", "/srv/a")) == "pass  workspace my-project /srv/a"
    assert line(Finding("pass", "account", "fine")) == f"pass  {'account':<18}fine"
