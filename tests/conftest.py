"""What every test of the suite gets: a leak guard, a home and a temporary folder of its own, an end to hangs."""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from codespace.testing import leaks, ports, processes
from codespace.testing.site import RUNNER

from .told import pytest_terminal_summary, tell

__all__ = ["pytest_terminal_summary", "tell"]

HANG_SECONDS = 300.0
# No test takes a tenth of this, and each wait in one has a bound of its own far below it, so that a slow machine
# costs a test and not the run. A hang prints every thread's stack and ends the run, or its worker, so that it is found
# where it is and not by the patience of whoever started it.

# The guard compares a folder that nobody else on the machine writes to. pytest's own tmp_path stays
# where it was, so that it can be looked at after a failure. A worker's folder is beside that of the process that
# started it and handed it its TMPDIR: below it, a path would soon be too long for a socket.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_OWN = Path(tempfile.mkdtemp(prefix="codespace-tests-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
_TEMPORARY = _OWN / "tmp"
_HOME = _OWN / "home"
for _folder in (_TEMPORARY, _HOME):
    _folder.mkdir()
os.environ["TMPDIR"] = tempfile.tempdir = str(_TEMPORARY)
# A test that forgets to say where state belongs must not touch the developer's own.
os.environ.update(HOME=str(_HOME), XDG_STATE_HOME=str(_HOME / ".state"), XDG_CONFIG_HOME=str(_HOME / ".config"))
for _name in [name for name in os.environ if name.startswith("CODESPACE_")]:
    del os.environ[_name]

BOTH_RUNNERS = ("gateway/test_execution.py", "gateway/test_undo.py")
# Commands and patches from end to end. More would take minutes; CI has the whole suite with `--runner uds` besides.

processes.adopt_orphans()
ports.claim()

# Programs under test hear signals as one that a terminal starts, also where a shell put the suite into the background
# or `nohup` before it: what is ignored is inherited.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine must not change what a property says: time is the business of the benchmarks.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves descriptors, processes, threads or temporary files behind."""
    with leaks.guard(_TEMPORARY):
        yield


@pytest.fixture(autouse=True)
def _leaves_logs_as_they_were() -> Iterator[None]:
    """Take back what a test, or a command line that it ran in this process, set up for the logs of the process."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(autouse=True)
def _ends_in_time() -> Iterator[None]:
    """End the run with every stack where a test hangs."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _runner(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the daemons of a test the runner that its parameter names, where it has one."""
    kind = getattr(request, "param", None)
    if kind is None:
        yield
        return
    os.environ[RUNNER] = kind
    yield
    del os.environ[RUNNER]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have the tests of some files meet both runners in every run; `--runner` gives all tests one of them."""
    inside = metafunc.definition.path.relative_to(Path(__file__).parent)
    if str(inside) in BOTH_RUNNERS and not metafunc.config.getoption("runner"):
        metafunc.parametrize("_runner", ("in-process", "uds"), indirect=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let one word run the whole suite against the other runner."""
    parser.addoption("--runner", choices=("in-process", "uds"), help="the runner of every daemon of this run")


def pytest_xdist_auto_num_workers() -> int:
    """Let `-n auto` start more workers than there are processors: much of a test is waiting for other programs."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_configure(config: pytest.Config) -> None:
    """Choose the run's runner, and forgive two warnings by name.

    The SDK's HTTP client leaves streams that it has done with to the collector. And a fork of a process with threads
    is warned of from Python 3.12 on: a worker of the suite always has one more, which only hears its orders.
    """
    if config.getoption("runner"):
        os.environ[RUNNER] = config.getoption("runner")
    for package in ("httpx2", "httpcore2", "mcp"):
        config.addinivalue_line("filterwarnings", f"ignore:Async generator '{package}\\..*:ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore:This process .* is multi-threaded:DeprecationWarning")


def pytest_sessionfinish() -> None:
    """Remove the folders of this run."""
    shutil.rmtree(_OWN, ignore_errors=True)
