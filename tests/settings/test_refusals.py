"""Settings that are wrong stop the start, and each error names the key, the problem and the fix."""

from __future__ import annotations

import os
import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from codespace.beneath import Hidden
from codespace.settings import Settings, SettingsError, load
from codespace.settings.document import refuse_foreign

from .home import Home


@pytest.mark.parametrize(
    ("keys", "key", "told"),
    [
        ({"profil": "read-only"}, "workspaces.app.profil", "`profile`"),
        ({"hidden-paths": []}, "workspaces.app.hidden-paths", "`hidden_paths`"),
        ({"zzz": 1}, "workspaces.app.zzz", "Known here"),
        ({"profile": "write"}, "workspaces.app.profile", "`workspace-write`"),
        ({"profile": "Read-Only"}, "workspaces.app.profile", "`read-only`"),
        ({"profile": True}, "workspaces.app.profile", "`read-only`"),
        ({"approvals": "opertaor"}, "workspaces.app.approvals", "`operator`"),
        (
            {"approvals": "operator", "sandbox": "optional"},
            "workspaces.app.sandbox",
            "`required`, or leave the key out",
        ),
        ({"approvals": "operator", "allow_degraded": True}, "workspaces.app.allow_degraded", "grant itself"),
        ({"allow_degraded": "false"}, "workspaces.app.allow_degraded", "without quotes"),
        ({"allow_submounts": 0}, "workspaces.app.allow_submounts", "true or false"),
        ({"timeout_seconds": "30"}, "workspaces.app.timeout_seconds", "without quotes"),
        ({"timeout_seconds": True}, "workspaces.app.timeout_seconds", "truth value"),
        ({"timeout_seconds": 0}, "workspaces.app.timeout_seconds", "above 0"),
        ({"timeout_seconds": 4000}, "workspaces.app.timeout_seconds", "max_timeout_seconds"),
        ({"limits": {"processes": 1.5}}, "workspaces.app.limits.processes", "whole number"),
        ({"limits": {"processes": -1}}, "workspaces.app.limits.processes", "at least 1"),
        ({"timeout_seconds": 10**400}, "workspaces.app.timeout_seconds", "out of range"),
        ({"max_timeout_seconds": 1e300}, "workspaces.app.max_timeout_seconds", "not over 3153600000"),
        ({"limits": {"memory_bytes": 10**40}}, "workspaces.app.limits.memory_bytes", "not over 9007199254740992"),
        ({"limits": {"pids": 4_194_305}}, "workspaces.app.limits.pids", "4194304"),
        ({"limits": {"open_files": 2**50}}, "workspaces.app.limits.open_files", "ulimit -Hn"),
        ({"readable_paths": ["/\udcff"]}, "CODESPACE_CONFIG", "alone is no character"),
        ({"env": {"A": "\ud800"}}, "CODESPACE_CONFIG", "alone is no character"),
        ({"limits": {"memory": 5}}, "workspaces.app.limits.memory", "`memory_bytes`"),
        ({"limits": []}, "workspaces.app.limits", "table"),
        ({"hidden_paths": ".env"}, "workspaces.app.hidden_paths", "list"),
        ({"hidden_paths": ["ok", 1]}, "workspaces.app.hidden_paths[1]", "below the root"),
        ({"hidden_paths": ["a/../../b"]}, "workspaces.app.hidden_paths[0]", "below the root"),
        ({"readable_paths": ["cache"]}, "workspaces.app.readable_paths[0]", "absolute"),
        ({"env": {"A=B": "x"}}, "workspaces.app.env", "letters"),
        ({"env": {"A": 1}}, "workspaces.app.env.A", "quotes"),
        ({"environment": "bx"}, "workspaces.app.environment", "host"),
        ({"allowed_domains": ["a"]}, "workspaces.app.allowed_domains", "restricted"),
        ({"network": "enabled", "allowed_domains": ["a b"]}, "workspaces.app.allowed_domains[0]", "host name"),
        *(
            ({"network": "enabled", "allowed_domains": [name]}, "workspaces.app.allowed_domains[0]", "acceptable")
            for name in ("a_b", "-a", "a-", "a..b", ".a", "a.-b", "*.", "ü-", "a\u200db")
        ),
        ({"network": "enabled", "allowed_domains": ["ab--ü"]}, "workspaces.app.allowed_domains[0]", "xn--"),
        ({"network": "enabled", "allowed_domains": ["a:x"]}, "workspaces.app.allowed_domains[0]", "port"),
        (
            {"network": "enabled", "allowed_domains": ["a:" + "1" * 5000]},
            "workspaces.app.allowed_domains[0]",
            "port",
        ),
        ({"network": "enabled", "allowed_domains": ["a:\u0664"]}, "workspaces.app.allowed_domains[0]", "port"),
        *(
            ({"network": "enabled", "allowed_domains": [entry]}, "workspaces.app.allowed_domains[0]", told)
            for entry, told in (
                ("10.0.0.7", '`{"host": "10.0.0.7", "address": "10.0.0.7"}`'),
                ("10.0.0.7:8080", '`{"host": "10.0.0.7", "port": 8080, "address": "10.0.0.7"}`'),
                ({"host": "10.0.0.7", "port": 80}, "only a pin"),
                ("127.1", "no address"),
                ("*.7", "no address"),
                ("0x7f", "no address"),
                ({"host": "010.0.0.7", "address": "10.0.0.7"}, "no address"),
            )
        ),
        (
            {"network": "enabled", "allowed_domains": [{"host": "a", "address": "999.1.1.1"}]},
            "workspaces.app.allowed_domains[0].address",
            "no address",
        ),
        ({"network": "enabled", "allowed_domains": [{"port": 1}]}, "workspaces.app.allowed_domains[0].host", "missing"),
        (
            {"network": "enabled", "allowed_domains": [{"hots": "a"}]},
            "workspaces.app.allowed_domains[0].hots",
            "`host`",
        ),
    ],
)
def test_a_wrong_key_of_a_workspace_is_refused(home: Home, keys: dict[str, Any], key: str, told: str) -> None:
    error = home.refusal(home.workspace(**keys))
    assert error.key == key
    assert told in f"{error.problem} {error.fix}"


@pytest.mark.parametrize("key", ["hidden_paths", "protected_paths"])
def test_a_pattern_that_is_a_whole_path_would_match_nothing_and_is_refused(home: Home, key: str) -> None:
    error = home.refusal(home.workspace(**{key: ["/ok", f"{home.project}/.env"]}))
    assert (error.key, error.fix) == (f"workspaces.app.{key}[1]", "Write `/.env`.")
    link = home.folder / "link"
    link.symlink_to(home.project)
    by_link = {"workspaces": {"app": {"root": str(link), key: [f"{link}/.env"]}}}
    assert home.refusal(by_link).fix == "Write `/.env`."


@pytest.mark.parametrize("key", ["hidden_paths", "protected_paths"])
@pytest.mark.parametrize(
    "pattern",
    [
        "!kept",
        ".env ",
        " .env",
        "./.env",
        "a//b",
        "a/./b",
        "/",
        ".",
        "[[:digit:]]*.pem",
        "a[[=a=]]",
        "[\\]]x",
        "\\\\[\\a]",
        ".env\xa0",
        "**/*.{pem,key}",
        "{.env,.envrc}",
        "/conf/{a,b}.yml",
        "log.{1..3}",
        "*.{pem}",
        "\\\\{a,b}",
        "${HOME}/.ssh",
        "$HOME/.ssh",
        "~/project/.env",
        "~",
        "*.+(pem|key)",
        "(id_rsa|id_dsa)",
        "*.pem,*.key",
        "*.pem, .env",
        "*.pem;*.key",
        "*.pem|*.key",
        "/a:/b",
        "C:/project/.env",
        "config\\secrets.env",
        "config\\.env",
        "secrets\\",
        "*.[pem",
        "[!]",
        "[ab]/[",
        ".*\\.pem",
    ],
)
def test_a_pattern_that_would_mean_nothing_here_is_refused(home: Home, key: str, pattern: str) -> None:
    assert home.refusal(home.workspace(**{key: ["/ok", pattern]})).key == f"workspaces.app.{key}[1]"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("name\\ ", "name "),
        ("[^]]x", "ax"),
        ("a b", "a b"),
        ("secrets/", "secrets/x"),
        ("**/.env", "a/.env"),
        ("\\!x", "!x"),
        ("[!a]", "b"),
        ("[^a]", "b"),
        ("app/\\[id\\]/x", "app/[id]/x"),
        ("\\[[:x]", "[x"),
        ("[[]x", "[x"),
        ("[]a]", "]"),
        ("[!]a]", "b"),
        ("**.pem", "a/b.pem"),
        ("#x", "#x"),
        ("\\{a,b}", "{a,b}"),
        ("\\{\\{cookie.slug}}/x", "{{cookie.slug}}/x"),
        ("{a", "{a"),
        ("\\~/x", "~/x"),
        ("*~", "a~"),
        ("/$id.tsx", "$id.tsx"),
        ("*,v", "a,v"),
        ("a\\,.b", "a,.b"),
        ("/(group)/+page.pem", "(group)/+page.pem"),
        ("*(1).pem", "a(1).pem"),
        ("\\(a|b)", "(a|b)"),
        ("a\\\\", "a\\"),
        ("**/*[-_,.]key", "b/a.key"),
        ("x[{}]y", "x{y"),
        ("[|/]a", "|a"),
        ("a\\[{,b", "a[{,b"),
    ],
)
def test_a_pattern_that_means_something_is_taken_and_is_what_it_says(home: Home, pattern: str, path: str) -> None:
    (workspace,) = home.load(home.workspace(hidden_paths=[pattern])).workspaces.values()
    assert workspace.hidden_paths == (pattern,)
    assert Hidden(workspace.hidden_paths).covers(path)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"workspace": {}}, "workspace"),
        ({"result": "both"}, "result"),
        ({"results": "all"}, "results"),
        ({"tools": "exec"}, "tools"),
        ({"tools": ["works"]}, "tools[0]"),
        ({"workspaces": []}, "workspaces"),
        ({"workspaces": {"a b": {}}}, "workspaces.a b"),
        ({"workspaces": {"app": None}}, "workspaces.app"),
        ({"workspaces": {"app": {}}}, "workspaces.app.root"),
        ({"environments": {"box": {}}}, "environments.box.kind"),
        ({"environments": {"host": {"kind": "linux-container"}}}, "environments.host.kind"),
        ({"rg_path": "/no/such/rg"}, "rg_path"),
        ({"bwrap_path": "bwrap"}, "bwrap_path"),
        ({"snapshot_bytes": 1e9}, "snapshot_bytes"),
    ],
)
def test_a_wrong_key_of_the_document_is_refused(home: Home, document: dict[str, Any], key: str) -> None:
    assert home.refusal(document).key == key


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("c.yaml", "a: 1", "neither"),
        ("c.json", "{", "cannot be parsed"),
        ("c.json", "[]", "not a JSON object"),
        ("c.json", '{"results": "both", "results": "text"}', "twice"),
        ("c.json", '{"retention_seconds": NaN}', "NaN"),
        ("c.json", '{"retention_seconds": 1e999}', "too large"),
        ("c.json", "[" * 100_000, "cannot be parsed"),
        ("c.toml", "a = ", "cannot be parsed"),
        ("c.toml", "#" * 2_000_000, "is over"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused(home: Home, name: str, text: str, told: str) -> None:
    home.write(text, name)
    error = home.refusal()
    assert error.key == "CODESPACE_CONFIG"
    assert told in error.problem


def test_a_named_file_that_is_missing_is_refused(home: Home) -> None:
    assert "No such file" in home.refusal(CODESPACE_CONFIG=str(home.folder / "none.toml")).problem


def test_a_fifo_in_the_place_of_the_file_does_not_hold_up_the_start(home: Home) -> None:
    os.mkfifo(home.folder / "pipe.toml")
    assert "regular file" in home.refusal(CODESPACE_CONFIG=str(home.folder / "pipe.toml")).problem


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_change_is_refused(home: Home, mode: int) -> None:
    home.write({}).chmod(mode)
    error = home.refusal()
    assert "other users" in error.problem
    assert "chmod go-w" in error.fix


def test_a_path_in_a_fix_is_whole_and_can_be_pasted(home: Home) -> None:
    folder = home.folder / ("deep " * 20).strip() / ("deeper" * 20)
    folder.mkdir(parents=True)
    path = folder / "config.json"
    path.write_text("{}")
    path.chmod(0o666)
    error = home.refusal(CODESPACE_CONFIG=str(path))
    assert str(path) in error.problem
    assert shlex.split(error.fix.removeprefix("Run: ")) == ["chmod", "go-w", str(path)]


def test_what_belongs_to_another_user_is_refused(home: Home) -> None:
    path = home.write({})
    mode, inode, device, links, _, *rest = os.stat(path)
    for owner in (os.geteuid(), 0):
        refuse_foreign("KEY", str(path), os.stat_result((mode, inode, device, links, owner, *rest)), fix="chmod")
    with pytest.raises(SettingsError, match="belongs to user 12345"):
        refuse_foreign("KEY", str(path), os.stat_result((mode, inode, device, links, 12345, *rest)), fix="chmod")


def test_a_state_directory_that_others_can_change_is_refused(home: Home) -> None:
    home.state.mkdir(parents=True)
    home.state.chmod(0o777)
    error = home.refusal()
    assert (error.key, "chmod 700" in error.fix) == ("CODESPACE_STATE_DIR", True)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("CODESPACE_CONFIG", "config.toml", "absolute"),
        ("CODESPACE_CONFIG", "", "empty"),
        ("CODESPACE_STATE_DIR", "~/state", "`~` is not expanded"),
        ("CODESPACE_OPERATIONS_DB", "ops.sqlite", "absolute"),
        ("CODESPACE_OPERATIONS_DB", "/no/such/folder/ops.sqlite", "cannot be a file"),
        ("CODESPACE_HTTP_PORT", "80x", "not a number"),
        ("CODESPACE_HTTP_PORT", "1_0", "not a number"),
        ("CODESPACE_HTTP_PORT", "65536", "65535"),
        ("CODESPACE_HTTP_HOST", "bad host", "host name"),
        ("CODESPACE_HTTP_HOST", "0.0.0.0", "CODESPACE_HTTP_TOKEN"),
        ("CODESPACE_ALLOWED_HOSTS", "box.example.org:8787", "CODESPACE_HTTP_TOKEN"),
        ("CODESPACE_ALLOWED_HOSTS", "a,,b", "not acceptable"),
        ("CODESPACE_HTTP_TOKEN", "two words", "without spaces"),
        ("CODESPACE_RUNNER_DIR", "/", "a directory for everything"),
        ("CODESPACE_RUNNER_DIR", "/tmp", "a directory for everything"),
        ("CODESPACE_RUNNER_DIR", "/var/tmp/.", "a directory for everything"),
        ("CODESPACE_RUNNER_DIR", "run", "absolute"),
        ("CODESPACE_CONFIG", "/c\udcff.json", "not UTF-8"),
        ("CODESPACE_STATE_DIR", "/s\udcff", "not UTF-8"),
        ("CODESPACE_STATE_DIR", "/dev/null/state", "cannot be made"),
        ("CODESPACE_OPERATIONS_DB", "/d\udcff", "not UTF-8"),
        ("CODESPACE_PROCESS_TIMEOUT_SECS", "1e300", "out of range"),
        ("CODESPACE_RUNNER", "remote", "`in-process`"),
        ("CODESPACE_PROCESS_TIMEOUT_SECS", "nan", "out of range"),
        ("CODESPACE_LOG", "loud", "`debug`"),
        ("CODESPACE_LOG_FORMAT", "xml", "`json`"),
    ],
)
def test_a_wrong_variable_is_refused(home: Home, name: str, value: str, told: str) -> None:
    error = home.refusal(**{name: value})
    assert error.key == name
    assert told in f"{error.problem} {error.fix}"


def test_a_range_is_told_once(home: Home) -> None:
    assert home.refusal(CODESPACE_HTTP_PORT="70000").fix == "Use a whole number from 0 to 65535."


@pytest.mark.parametrize("variable", ["CODESPACE_STATE_DIR", "CODESPACE_OPERATIONS_DB", "CODESPACE_CONFIG", "HOME"])
def test_a_link_to_a_place_that_is_not_utf_8_is_refused_before_the_database_meets_its_name(
    home: Home, variable: str
) -> None:
    place = os.fsencode(home.folder) + b"/p\xff"
    os.mkdir(place)
    os.symlink(place, home.folder / "link")
    inside = {"CODESPACE_OPERATIONS_DB": "/ops.sqlite", "CODESPACE_CONFIG": "/../p\udcff/c.json"}.get(variable, "")
    assert "not UTF-8" in home.refusal(**{variable: f"{home.folder}/link{inside}"}).problem


def test_a_root_behind_a_link_that_is_not_utf_8_is_refused(home: Home) -> None:
    place = os.fsencode(home.folder) + b"/p\xff"
    os.mkdir(place)
    os.symlink(place, home.folder / "link")
    error = home.refusal({"workspaces": {"app": {"root": f"{home.folder}/link"}}})
    assert (error.key, "not UTF-8" in error.problem) == ("workspaces.app.root", True)


def test_a_slip_in_the_name_of_a_variable_is_noticed(home: Home) -> None:
    assert "CODESPACE_HTTP_PORT" in home.refusal(CODESPACE_HTTP_PROT="1").fix


def test_variables_of_other_programs_with_our_prefix_are_left_alone(home: Home) -> None:
    home.load(CODESPACE_NAME="fluffy-spoon", CODESPACES="true", CODESPACE_VSCODE_FOLDER="/workspaces")


def test_a_refused_token_is_not_repeated(home: Home) -> None:
    assert "canary" not in str(home.refusal(CODESPACE_HTTP_TOKEN="canary with spaces"))


def test_one_token_for_both_doors_is_refused(home: Home) -> None:
    assert "different" in home.refusal(CODESPACE_HTTP_TOKEN="same", CODESPACE_OPERATOR_TOKEN="same").fix


@pytest.mark.parametrize(
    "exposed", [("CODESPACE_HTTP_HOST", "0.0.0.0"), ("CODESPACE_ALLOWED_HOSTS", "box.example.org")]
)
def test_a_token_that_is_soon_guessed_is_refused_where_others_can_connect(home: Home, exposed: tuple[str, str]) -> None:
    long, short = "c4nary" * 3, "c4nary" * 2
    for tokens in ({"CODESPACE_HTTP_TOKEN": short}, {"CODESPACE_HTTP_TOKEN": long, "CODESPACE_OPERATOR_TOKEN": short}):
        home.load(**tokens)
        refused = home.refusal(**dict([exposed]), **tokens)
        assert (refused.key, "c4nary" in str(refused)) == (list(tokens)[-1], False)
        assert "under 16 characters" in refused.problem


def test_hostile_text_in_a_setting_never_acts_on_the_terminal_that_shows_it(home: Home) -> None:
    for document in ({"\x1b[2J": 1}, {"results": "\x1b]0;x\x07\u202e"}, {"workspaces": {"\x1b[31m": {}}}):
        assert not {"\x1b", "\x07", "\u202e"} & set(str(home.refusal(document)))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(["root", "profile", "limits", "env", "allowed_domains", "hidden_paths", "network", "approvals"])


@hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300
)
@given(st.dictionaries(_KEYS | st.text(max_size=8), _VALUES, max_size=4))
def test_whatever_is_written_ends_in_settings_or_in_one_clear_refusal(home: Home, keys: dict[str, Any]) -> None:
    home.write({"workspaces": {"app": {"root": str(home.project), **keys}}})
    try:
        outcome: Settings | SettingsError = load(home.environ)
    except SettingsError as error:
        outcome = error
    assert isinstance(outcome, Settings) or (outcome.key and outcome.fix)
