"""What every test of the suite gets: a leak guard, a home and a temporary folder of its own, an end to hangs."""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from codespace.testing import leaks, processes

HANG_SECONDS = 120.0
# No test takes a tenth of this. A hang prints every thread's stack and ends the run, so that it is
# found where it is and not by the patience of whoever started it.

# The guard compares a folder that nobody else on the machine writes to. pytest's own tmp_path stays
# where it was, so that it can be looked at after a failure.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_OWN = Path(tempfile.mkdtemp(prefix="codespace-tests-"))
_TEMPORARY = _OWN / "tmp"
_HOME = _OWN / "home"
for _folder in (_TEMPORARY, _HOME):
    _folder.mkdir()
os.environ["TMPDIR"] = tempfile.tempdir = str(_TEMPORARY)
# A test that forgets to say where state belongs must not touch the developer's own.
os.environ.update(HOME=str(_HOME), XDG_STATE_HOME=str(_HOME / ".state"), XDG_CONFIG_HOME=str(_HOME / ".config"))
for _name in [name for name in os.environ if name.startswith("CODESPACE_")]:
    del os.environ[_name]

processes.adopt_orphans()

# A loaded machine must not change what a property says: time is the business of the benchmarks.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves descriptors, processes, threads or temporary files behind."""
    with leaks.guard(_TEMPORARY):
        yield


@pytest.fixture(autouse=True)
def _ends_in_time() -> Iterator[None]:
    """End the run with every stack where a test hangs."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def pytest_configure(config: pytest.Config) -> None:
    """Forgive one warning by name: the SDK's HTTP client leaves streams that it has done with to the collector."""
    for package in ("httpx2", "httpcore2", "mcp"):
        config.addinivalue_line("filterwarnings", f"ignore:Async generator '{package}\\..*:ResourceWarning")


def pytest_sessionfinish() -> None:
    """Remove the folders of this run."""
    shutil.rmtree(_OWN, ignore_errors=True)
