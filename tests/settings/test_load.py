"""What an operator writes becomes settings, completely and with the defaults of the contract."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from codespace.contract import Domain
from codespace.settings import check, notices

from .home import Home

TOML = """
results = "text"
tools = ["approvals"]
approval_expiry_seconds = 60

[environments.box]
kind = "linux-container"

[workspaces.app]
root = "{root}"
profile = "workspace-write"
network = "enabled"
allowed_domains = ["pypi.org", "*.example.org:8443", {{ host = "db", port = 5432, address = "10.0.0.5" }}]
approvals = "confirm"
environment = "box"
occupancy = "shared"
timeout_seconds = 30
max_timeout_seconds = 60.5
env = {{ LANG = "C.UTF-8" }}
limits = {{ processes = 4, memory_bytes = 1000000 }}
sandbox = "required"
allow_degraded = true
allow_submounts = true
git = "unprotected"
hidden_paths = ["**/.env"]
protected_paths = []
"""


def test_without_any_configuration_nothing_is_registered_and_the_daemon_is_told_so(home: Home) -> None:
    settings = home.load()
    assert settings.workspaces == {}
    assert settings.config_path is None
    assert settings.state_dir == str(home.state)
    assert settings.database == str(home.state / "operations.sqlite")
    assert (settings.http_host, settings.http_port, settings.http_token) == ("127.0.0.1", 8787, None)
    assert [notice for notice in notices(settings) if "No workspace is registered" in notice]


def test_every_key_of_a_toml_file_arrives(home: Home) -> None:
    home.write(TOML.format(root=home.project), "config.toml")
    settings = home.load()
    app = settings.workspaces["app"]
    assert (settings.results, settings.tools, settings.approval_expiry_seconds) == ("text", ("approvals",), 60.0)
    assert (app.id, app.root, app.profile, app.network) == ("app", str(home.project), "workspace-write", "enabled")
    assert app.allowed_domains == (
        Domain("pypi.org"),
        Domain("*.example.org", 8443),
        Domain("db", 5432, "10.0.0.5"),
    )
    assert (app.approvals, app.environment, app.environment_kind) == ("confirm", "box", "linux-container")
    assert (app.occupancy, app.timeout_seconds, app.max_timeout_seconds) == ("shared", 30.0, 60.5)
    assert (app.env, app.limits.processes, app.limits.memory_bytes) == ({"LANG": "C.UTF-8"}, 4, 1_000_000)
    assert (app.sandbox, app.allow_degraded, app.allow_submounts, app.git) == ("required", True, True, "unprotected")
    assert (app.hidden_paths, app.protected_paths) == (("**/.env",), ())


def test_names_of_hosts_are_kept_as_they_travel(home: Home) -> None:
    wanted = [
        "PyPI.org.",
        "Bücher.Example",
        "*.bücher.example:8443",
        {"host": "Ü.test.", "address": "::1"},
        {"host": "10.0.0.7", "address": "10.0.0.7"},
    ]
    keys = {"profile": "workspace-write", "network": "enabled", "allowed_domains": wanted}
    assert home.load(home.workspace(**keys)).workspaces["app"].allowed_domains == (
        Domain("pypi.org"),
        Domain("xn--bcher-kva.example"),
        Domain("*.xn--bcher-kva.example", 8443),
        Domain("xn--tda.test", address="::1"),
        Domain("10.0.0.7", address="10.0.0.7"),
    )


def test_the_defaults_are_those_of_the_contract(home: Home) -> None:
    app = home.load(home.workspace()).workspaces["app"]
    assert (app.profile, app.network, app.approvals, app.occupancy) == ("read-only", "restricted", "off", "exclusive")
    assert (app.timeout_seconds, app.max_timeout_seconds) == (600.0, 3600.0)
    assert (app.sandbox, app.git, app.allow_degraded, app.allow_submounts) == ("optional", "read_only", False, False)
    assert (app.environment, app.environment_kind, app.protected_paths) == ("host", "host", None)


def test_json_and_toml_say_the_same(home: Home) -> None:
    from_json = home.load(home.workspace(profile="workspace-write")).workspaces
    home.write(f'[workspaces.app]\nroot = "{home.project}"\nprofile = "workspace-write"\n', "config.toml")
    assert home.load().workspaces == from_json


def test_the_file_in_the_default_place_is_found(home: Home) -> None:
    path = home.path / ".config/codespace/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'[workspaces.app]\nroot = "{home.project}"\n')
    settings = home.load()
    assert settings.config_path == str(path)
    assert list(settings.workspaces) == ["app"]


def test_a_root_behind_a_link_is_resolved_once(home: Home) -> None:
    link = home.folder / "link"
    link.symlink_to(home.project)
    app = home.load({"workspaces": {"app": {"root": f"{link}/"}}}).workspaces["app"]
    assert app.root == str(home.project)


def test_the_state_directory_is_made_for_its_owner_alone(home: Home) -> None:
    old = os.umask(0)
    try:
        home.load()
    finally:
        os.umask(old)
    assert stat.S_IMODE(home.state.stat().st_mode) == 0o700


def test_a_relative_xdg_path_is_ignored(home: Home) -> None:
    assert home.load(XDG_STATE_HOME="state").state_dir == str(home.state)


def test_checking_makes_nothing(home: Home) -> None:
    check(home.environ)
    assert not home.state.exists()


def test_refused_settings_make_nothing(home: Home) -> None:
    home.refusal({"workspaces": {"app": {}}})
    assert not home.state.exists()


def test_the_environment_decides_places_and_the_door(home: Home, tmp_path: Path) -> None:
    settings = home.load(
        CODESPACE_STATE_DIR=str(tmp_path / "s"),
        CODESPACE_OPERATIONS_DB=":memory:",
        CODESPACE_HTTP_HOST="0.0.0.0",
        CODESPACE_HTTP_PORT="0",
        CODESPACE_HTTP_TOKEN="t0ken-of-16-chars",
        CODESPACE_ALLOWED_HOSTS="box.example.org, BOX:8787",
        CODESPACE_LOG="DEBUG",
        CODESPACE_LOG_FORMAT="json",
    )
    assert (settings.state_dir, settings.database) == (str(tmp_path / "s"), ":memory:")
    assert (settings.http_host, settings.http_port, settings.http_token) == ("0.0.0.0", 0, "t0ken-of-16-chars")
    assert settings.allowed_hosts == ("box.example.org", "box:8787")
    assert (settings.log_level, settings.log_format) == ("debug", "json")


def test_settings_never_show_their_tokens(home: Home) -> None:
    settings = home.load(CODESPACE_HTTP_TOKEN="canary-1", CODESPACE_OPERATOR_TOKEN="canary-2")
    assert "canary" not in repr(settings)


def test_the_operators_default_time_limit_gives_way_to_a_lower_maximum(home: Home) -> None:
    document = {
        "workspaces": {
            "app": {"root": str(home.project)},
            "short": {"root": str(home.folder / "short"), "max_timeout_seconds": 10},
        }
    }
    (home.folder / "short").mkdir()
    found = home.load(document, CODESPACE_PROCESS_TIMEOUT_SECS="45").workspaces
    assert (found["app"].timeout_seconds, found["short"].timeout_seconds) == (45.0, 10.0)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"network": "enabled"}, "nothing can be reached"),
        ({"allow_degraded": True, "sandbox": "required"}, "accepts nothing less"),
    ],
)
def test_what_is_asked_for_and_not_in_force_is_said(home: Home, keys: dict[str, object], told: str) -> None:
    assert [notice for notice in notices(home.load(home.workspace(**keys))) if told in notice]


def test_a_workspace_whose_commands_may_lock_a_directory_above_another_root_is_told(home: Home) -> None:
    (home.project / "lib").mkdir()
    root = str(home.folder / "other")
    (home.folder / "other").mkdir()
    reader = {"root": root, "readable_paths": [str(home.project)]}
    for place, told in ((home.project, True), (home.project / "lib", True), (home.folder / "third", False)):
        place.mkdir(exist_ok=True)
        settings = home.load({"workspaces": {"app": {"root": str(place)}, "reader": reader}})
        assert any("keeps workspace app busy" in notice for notice in notices(settings)) == told


def test_one_workspace_that_the_operator_decides_for_demands_a_sandbox_everywhere(home: Home) -> None:
    document = home.workspace(approvals="operator")
    (home.folder / "other").mkdir()
    document["workspaces"]["other"] = {"root": str(home.folder / "other"), "profile": "workspace-write"}
    settings = home.load(document)
    assert {each.sandbox for each in settings.workspaces.values()} == {"required"}


def test_a_weaker_workspace_beside_one_that_the_operator_decides_for_is_refused_by_its_own_key(home: Home) -> None:
    document = home.workspace(approvals="operator")
    (home.folder / "other").mkdir()
    document["workspaces"]["other"] = {"root": str(home.folder / "other"), "sandbox": "optional"}
    error = home.refusal(document)
    assert error.key == "workspaces.other.sandbox"
    assert "workspace `app`" in error.problem


def test_a_database_in_memory_is_refused_where_the_operator_decides(home: Home) -> None:
    error = home.refusal(home.workspace(approvals="operator"), CODESPACE_OPERATIONS_DB=":memory:")
    assert error.key == "CODESPACE_OPERATIONS_DB"
    assert "operator" in error.problem
