"""What `init` offers for commands: hosts of the operator's own sources without anything secret, and toolchains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codespace.cli import sources
from codespace.settings import keys


def write(home: Path, path: str, text: str) -> None:
    (home / path).parent.mkdir(parents=True, exist_ok=True)
    (home / path).write_text(text)


@pytest.mark.parametrize(
    ("program", "path", "text", "expected"),
    [
        ("python3", ".config/pip/pip.conf", "[global]\nindex-url = https://me:token@mirror.example/simple\n", "mirror"),
        ("python3", ".pip/pip.conf", "[install]\nextra-index-url =\n  https://mirror.example:8443/a\n", "mirror:8443"),
        ("python3", ".config/uv/uv.toml", '[[index]]\nurl = "https://mirror.example/simple"\n', "mirror"),
        ("node", ".npmrc", "@us:registry=https://mirror.example/\n//mirror.example/:_authToken=secret\n", "mirror"),
        (
            "cargo",
            ".cargo/config.toml",
            '[source.crates-io]\nreplace-with = "m"\n[source.m]\nregistry = "sparse+https://mirror.example/index/"\n',
            "mirror",
        ),
    ],
)
def test_the_operators_own_source_is_offered_by_its_host_alone(
    tmp_path: Path, program: str, path: str, text: str, expected: str
) -> None:
    write(tmp_path, path, text)
    found = sources.domains([program], {}, str(tmp_path))
    host, _, port = expected.partition(":")
    assert f"{host}.example{f':{port}' if port else ''}" in found
    assert not [entry for entry in found if "token" in entry or "secret" in entry or "@" in entry]


def test_where_nothing_is_configured_the_public_ones_are_offered(tmp_path: Path) -> None:
    assert sources.domains(["cargo", "make"], {}, str(tmp_path)) == ["index.crates.io", "static.crates.io"]


@pytest.mark.parametrize(
    ("source", "pin"),
    [
        ("10.0.0.7", {"host": "10.0.0.7", "address": "10.0.0.7"}),
        ("10.0.0.7:8080", {"host": "10.0.0.7", "port": 8080, "address": "10.0.0.7"}),
    ],
)
def test_a_source_at_an_address_is_offered_as_the_pin_that_it_needs(
    tmp_path: Path, source: str, pin: dict[str, object]
) -> None:
    found = sources.domains(["node"], {"NPM_CONFIG_REGISTRY": f"http://{source}/"}, str(tmp_path))
    assert found == [pin]
    assert keys.WORKSPACE["allowed_domains"].kind.check("allowed_domains", found)


def test_a_broken_configuration_offers_what_is_public(tmp_path: Path) -> None:
    write(tmp_path, ".cargo/config.toml", "= no toml")
    write(tmp_path, ".npmrc", "registry=https://[broken\n")
    found = sources.domains(["cargo", "node"], {}, str(tmp_path))
    assert found == ["index.crates.io", "static.crates.io", "registry.npmjs.org"]


@pytest.mark.parametrize("value", ["[" * 5_000 + "]" * 5_000, "9" * 5_000])
def test_a_configuration_that_no_parser_takes_offers_what_is_public(tmp_path: Path, value: str) -> None:
    write(tmp_path, ".cargo/config.toml", f"a = {value}")
    assert sources.domains(["cargo"], {}, str(tmp_path)) == ["index.crates.io", "static.crates.io"]


def test_a_configuration_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".npmrc")
    assert sources.domains(["node"], {}, str(tmp_path)) == ["registry.npmjs.org"]


def test_a_toolchain_outside_is_offered_as_a_whole_but_never_what_holds_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("node-22/bin/node", ".cargo/bin/cargo", ".rustup/toolchains/x"):
        write(tmp_path, path, "#!/bin/sh\n")
        (tmp_path / path).chmod(0o755)
    (tmp_path / ".local/bin").mkdir(parents=True)
    for variable in ("CARGO_HOME", "RUSTUP_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/node-22/bin:{tmp_path}/.cargo/bin:/usr/bin")
    found = sources.readable_paths(["node", "cargo", "sh"], str(tmp_path), str(tmp_path))
    assert found == [f"{tmp_path}/node-22", f"{tmp_path}/.cargo/bin", f"{tmp_path}/.rustup/toolchains"]


@pytest.mark.parametrize(
    ("cargo_home", "rustup_home"), [("share/cargo", "share/rustup"), ("share/cargo", None), (None, "share/rustup")]
)
def test_of_cargos_own_folder_the_programs_alone_are_offered_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cargo_home: str | None, rustup_home: str | None
) -> None:
    write(tmp_path, "share/cargo/bin/cargo", "#!/bin/sh\n")
    (tmp_path / "share/cargo/bin/cargo").chmod(0o755)
    if cargo_home is None:  # as in a shell whose environment says nothing of it
        write(tmp_path, "share/cargo/credentials.toml", "[registry]\n")
    for variable, value in (("CARGO_HOME", cargo_home), ("RUSTUP_HOME", rustup_home)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, str(tmp_path / value))
    (tmp_path / (rustup_home or ".rustup") / "toolchains").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path}/share/cargo/bin:/usr/bin")
    found = sources.readable_paths(["cargo"], str(tmp_path), str(tmp_path))
    assert found == [f"{tmp_path}/share/cargo/bin", f"{tmp_path}/{rustup_home or '.rustup'}/toolchains"]


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyenv with three Pythons, its shims first in PATH, and an empty project beside it."""
    for path in ("shims/python3", *(f"versions/{each}/bin/python3" for each in ("3.9.1", "3.12.1", "3.12.10"))):
        write(tmp_path, f".pyenv/{path}", "#!/bin/sh\n")
        (tmp_path / ".pyenv" / path).chmod(0o755)
    write(tmp_path, ".pyenv/version", "system 3.9.1\n")
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/.pyenv/shims:/usr/bin")
    return tmp_path / ".pyenv"


@pytest.mark.parametrize(
    ("said", "version"), [(None, "3.9.1"), ("3.12\n", "3.12.10"), ("3.12.1\n", "3.12.1"), ("../3.12.1\n", "3.9.1")]
)
def test_what_is_behind_a_shim_is_offered_and_never_the_shim(
    tmp_path: Path, pyenv: Path, said: str | None, version: str
) -> None:
    if said is not None:
        write(tmp_path, "project/.python-version", said)
    found = sources.readable_paths(["python3"], str(tmp_path), str(tmp_path / "project"))
    assert found == [f"{pyenv}/versions/{version}"]


def test_nothing_is_offered_for_a_shim_whose_program_is_not_known(tmp_path: Path, pyenv: Path) -> None:
    (pyenv / "version").unlink()
    assert sources.readable_paths(["python3"], str(tmp_path), str(tmp_path / "project")) == []
    (pyenv / "shims" / "python3").unlink()
    (pyenv / "shims" / "python3").symlink_to(pyenv / "versions/3.9.1/bin/python3")  # as mise has them, to itself
    assert sources.readable_paths(["python3"], str(tmp_path), str(tmp_path / "project")) == []


def test_the_python_of_the_projects_environment_is_offered_and_nothing_else_that_a_link_there_leads_to(
    tmp_path: Path, pyenv: Path
) -> None:
    link = tmp_path / "project/.venv/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(pyenv / "versions/3.12.1/bin/python3")
    (pyenv / "version").unlink()
    assert sources.readable_paths(["python3"], str(tmp_path), str(tmp_path / "project")) == []
    write(pyenv, "versions/3.12.1/lib/python3/os.py", "")
    assert sources.readable_paths(["python3"], str(tmp_path), str(tmp_path / "project")) == [f"{pyenv}/versions/3.12.1"]
