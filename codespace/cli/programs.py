"""The two programs that find and search use, as `doctor` sees them: which is taken, and how it is confined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codespace.cli.finding import Finding
from codespace.errors import Refusal
from codespace.runner.search.confinement import Confinement, Prober
from codespace.sandbox import binaries
from codespace.sandbox.binaries import Binary
from codespace.settings import Settings

_SANDBOX_FIX = (
    "Allow unprivileged user namespaces. On Ubuntu 23.10 and later: an AppArmor profile for this bwrap, or "
    "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`. Elsewhere: "
    "`sudo sysctl user.max_user_namespaces=15000`. In Docker: "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined."
)
_BUSY_FIX = "Try again when the machine is less busy."


def findings(settings: Settings) -> Iterator[Finding]:
    """Yield what is in force for find and search, from a real run on a witness file."""
    try:
        ripgreps = binaries.ripgreps(settings.rg_path)
        bubblewraps = binaries.bubblewraps(settings.bwrap_path)
    except binaries.Unanswered as problem:
        yield Finding("fail", "ripgrep", f"nothing is known of it now: {problem}", _BUSY_FIX)
        return
    if not ripgreps:
        fix = "Correct rg_path." if settings.rg_path else "Install CodeSpace with its dependencies (`pip install .`)."
        what = f"{settings.rg_path} is no ripgrep that can be run" if settings.rg_path else "no ripgrep can be run"
        yield Finding("fail", "ripgrep", f"{what}: find and search are not available", fix)
        return
    yield Finding("pass", "ripgrep", _named(ripgreps[0]))
    try:
        yield _confined(Prober(settings.rg_path, settings.bwrap_path).confinement(), bubblewraps)
    except Refusal as error:
        yield Finding("fail", "search sandbox", error.message, error.next_step)


def _confined(confinement: Confinement, bubblewraps: Sequence[Binary]) -> Finding:
    if confinement.kind == "bubblewrap":
        taken = next(found for found in bubblewraps if found.path == confinement.bubblewrap)
        return Finding("pass", "search sandbox", f"bubblewrap {_named(taken)}: a search sees the root and nothing else")
    fix = _SANDBOX_FIX if bubblewraps else "Install bubblewrap, or correct bwrap_path."
    reason = confinement.reason or "unknown"
    return Finding("limit", "search sandbox", f"none ({reason}); files are opened for ripgrep one by one, slower", fix)


def _named(binary: Binary) -> str:
    return f"{'.'.join(map(str, binary.version))} ({binary.path})"
