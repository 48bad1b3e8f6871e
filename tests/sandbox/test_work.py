"""Everyday work in the sandbox: what people do with a project goes on to work, by the documented settings."""

from __future__ import annotations

import os
import shutil
import sys
import venv
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

from codespace.contract import Workspace
from codespace.runner.supervisor import Supervisor
from codespace.sandbox.box import Sandbox

from .test_supervised import SECONDS, Bench

Open = Callable[..., AbstractAsyncContextManager[Bench]]
_sandbox = Sandbox()


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    root = tmp_path / "root"
    root.mkdir()

    @asynccontextmanager
    async def opened(**settings: object) -> AsyncIterator[Bench]:
        workspace = Workspace("w", str(root), profile="workspace-write", **settings)  # type: ignore[arg-type]
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            with trio.fail_after(SECONDS):
                async with Supervisor(str(tmp_path / "state"), sandbox=_sandbox) as supervisor:
                    yield Bench(supervisor, workspace, descriptor)
        finally:
            os.close(descriptor)

    return opened


def needs(*programs: str) -> None:
    """Fail where a program is missing: a test of real work that is left out is a hole that nobody sees."""
    missing = [name for name in programs if shutil.which(name) is None]
    assert not missing, f"not here: {missing}; .ci/run installs what these tests run"


C_PROJECT = {
    "hello.c": "#include <stdio.h>\nint twice(int);\n"
    'int main(int n, char **words) { return printf("hello %s %d\\n", words[1], twice(1)) < 0; }\n',
    "twice.c": "int twice(int x) { return 2 * x; }\n",
    "Makefile": "hello: hello.o twice.o\n\t$(CC) -o $@ $^\nclean:\n\trm -f hello *.o\n",
}


async def run(bench: Bench, *argv: str) -> tuple[object, str]:
    state, text = await bench.run(*argv)
    return state.exit_code, text


async def test_a_dev_server_is_reached_on_the_loopback_of_its_run(opened: Open) -> None:
    serve = (
        "use IO::Socket::INET; my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1', LocalPort => 0);"
        "if (!fork) { my $c = $s->accept; print $c qq(served\\n); exit }"
        "print IO::Socket::INET->new('127.0.0.1:' . $s->sockport)->getline; wait"
    )
    async with opened() as bench:
        assert await run(bench, "perl", "-e", serve) == (0, "served\n")


async def test_a_program_is_compiled_by_make_and_runs(opened: Open, tmp_path: Path) -> None:
    needs("make", "cc")
    for name, text in C_PROJECT.items():
        (tmp_path / "root" / name).write_text(text)
    async with opened() as bench:
        assert await run(bench, "sh", "-c", "make -s -j2 && ./hello world") == (0, "hello world 2\n")
        (tmp_path / "root/twice.c").write_text("int twice(int x) { return 3 * x; }\n")
        assert await run(bench, "sh", "-c", "make -s && ./hello again") == (0, "hello again 3\n")
        assert (await run(bench, "make", "-s", "clean"))[0] == 0
    assert not (tmp_path / "root/hello").exists()


async def test_a_virtual_environment_runs_its_tests_where_its_python_is_a_readable_path(
    opened: Open, tmp_path: Path
) -> None:
    venv.create(tmp_path / "root/venv", symlinks=True)
    (tmp_path / "root/test_it.py").write_text("def test_it(tmp_path): (tmp_path / 'made').write_text('x')\n")
    packages = str(Path(pytest.__file__).parents[1])
    settings = {"readable_paths": (sys.base_prefix, packages), "env": {"PYTHONPATH": packages}}
    async with opened(**settings) as bench:
        code, text = await run(bench, "venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
        assert code == 0, text
        assert "1 passed" in text


async def test_processes_of_python_talk_to_each_other(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "root/many.py").write_text(
        "import multiprocessing\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('forkserver').Pool(2) as pool: print(pool.map(double, [1, 2, 3]))\n"
    )
    python = os.path.realpath(sys.executable)
    async with opened(readable_paths=(sys.base_prefix,)) as bench:
        assert await run(bench, python, "many.py") == (0, "[2, 4, 6]\n")
