"""The patch transaction's verbs, carried out by one helper process for each workspace (and state directory).

The runner keeps no bytes of a patch: it sends the text, hears hashes, and looks at the disk itself
before anyone may say `applied`. A helper that dies, hangs or speaks nonsense is replaced; what that
means for the operation depends on the verb and is said by the refusal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import structlog
import trio

from codespace import limits
from codespace.beneath import Root
from codespace.contract import DiffPage, PatchPlan, PatchReport, Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.platform import own_umask
from codespace.runner.patch import journals
from codespace.runner.patch.channel import Channel, Lost
from codespace.runner.patch.replies import answer
from codespace.runner.protected import git_is_protected, protected_paths, require_unprotected
from codespace.runner.roots import Roots
from codespace.runner.turns import Turns
from codespace.sandbox.inventory import git, gitconfig

HELPER: Final = (sys.executable, "-I", "-X", "utf8", "-m", "helper.patch")

_SECONDS: Final[Mapping[str, float]] = {
    "plan": limits.PLAN_SECONDS,
    "plan_undo": limits.PLAN_SECONDS,
    "diff": limits.PLAN_SECONDS,
    "stage": limits.STAGE_SECONDS,
    "install": limits.INSTALL_SECONDS,
    "restore": limits.RESTORE_SECONDS,
    "finish": limits.FINISH_SECONDS,
    "settle": limits.SETTLE_SECONDS,
}
_WRITES_NOTHING: Final = frozenset({"plan", "plan_undo", "diff"})
_REPEATABLE: Final = frozenset({"restore", "finish", "settle"})
# They work from the journal, so twice is as once. A plan is repeated too where its helper died, but not where it
# hung: the same patch would hang the next one as well.
_VERIFY_SECONDS: Final = 2 * limits.VERIFY_SECONDS  # it looks at its own time limit between two files
_ROOT_STEP_SECONDS: Final = 0.001  # nothing tells that a directory is back
_ESCAPED_CHARACTER_BYTES: Final = 6  # of one byte of patch text on the wire, at worst
_LINE_ROOM_BYTES: Final = 1_048_576  # for everything else in the line

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Seat:
    """The place of one workspace's helper. The lock keeps requests in order."""

    workspace: Workspace
    folder: str
    lock: trio.Lock = field(default_factory=trio.Lock)
    channel: Channel | None = None
    readable: str = ""
    """A folder with journals of another daemon that the helper may read."""
    atomic: bool | None = None
    """Whether every filesystem that was patched exchanges names in one step; None before the first patch."""


class Patcher:
    """Plans, stages, installs, verifies, restores, finishes and settles patches.

    Use it as `async with Patcher(state_dir) as patcher`; leaving ends every helper within a bounded time.
    Each verb is bounded by its own deadline in `limits` and raises Refusal.

    Args:
        state_dir: Where the journals go; never inside a root.
        argv: The helper's command line.
        roots: Those that reads go through, so that what they saw in place is what is patched; closing stays with the
            caller. None for roots of its own.
    """

    def __init__(self, state_dir: str, *, argv: Sequence[str] = HELPER, roots: Roots | None = None) -> None:
        self._state_dir = state_dir
        self._folder = journals.folder(state_dir)
        self._argv = argv
        self._umask = own_umask()
        self._seats: dict[tuple[str, str, str], _Seat] = {}
        self._reading: dict[str, _Seat] = {}  # of each undo of another daemon's patch, from its plan to `finish`
        self._cut_off = False
        self._confined: Mapping[str, Any] | None = None
        self._after: dict[str, Mapping[str, str]] = {}
        self._own_roots = Roots()
        self._roots = self._own_roots if roots is None else roots
        self._turns = Turns(4)  # verify is short; more at once would only fight for the disk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                for seat in self._seats.values():
                    if seat.channel is not None:
                        nursery.start_soon(seat.channel.close)
        finally:
            self._own_roots.close()

    def cut_off(self) -> None:
        """End every wait for a helper now, and allow no new one: for a stop whose time is over.

        Journals say what became of what was under way.
        """
        self._cut_off = True
        for seat in self._seats.values():
            if seat.channel is not None:
                seat.channel.cut_off()

    async def plan(
        self, workspace: Workspace, operation_id: str, patch: str, expected_versions: Mapping[str, str]
    ) -> PatchPlan:
        """Return what the patch would do; nothing is written. The helper holds the plan until `finish`.

        Cancel: the plan is abandoned; nothing was written.
        """
        most = workspace.limits.patch_bytes
        room = (limits.HELPER_LINE_BYTES - _LINE_ROOM_BYTES) // _ESCAPED_CHARACTER_BYTES
        if len(patch) > min(most, room):
            raise Refusal(
                "LIMIT_REACHED",
                f"The patch has {len(patch):,} characters, over the limit of {min(most, room):,} bytes. "
                "Nothing was written.",
                next_step="Send it as several patches, or ask the operator to raise limits.patch_bytes.",
                details={"limit": "patch_bytes", "setting": "limits.patch_bytes", "value": min(most, room)},
            )
        found: PatchPlan
        found, after = await self._call(
            workspace, "plan", operation_id, patch=patch, expected_versions=dict(expected_versions)
        )
        await self._check_protected(workspace, found)
        self._after[operation_id] = after
        return replace(found, token=operation_id)

    async def plan_undo(
        self, workspace: Workspace, operation_id: str, undone: str, state_dir: str | None = None
    ) -> PatchPlan:
        """Return what taking back the applied operation `undone` would do; as `plan` in all else.

        Args:
            state_dir: Of the daemon that has its journal; None for this one.
        Raises: Refusal VERSION_CONFLICT, SNAPSHOT_EXPIRED.
        """
        folder = self._folder if state_dir is None else journals.folder(state_dir)
        found: PatchPlan
        if folder != self._folder:  # one in the place of the workspace's own would not know what that has staged
            self._reading[operation_id] = self._seat(workspace, None, readable=folder)
        found, after = await self._call(workspace, "plan_undo", operation_id, undone=undone, folder=folder)
        await self._check_protected(workspace, found)
        self._after[operation_id] = after
        return replace(found, token=operation_id)

    async def diff(self, workspace: Workspace, operation_id: str, cursor: int) -> DiffPage:
        """Return a page of the whole diff of a plan that is held.

        Raises: Refusal OPERATION_NOT_FOUND where it no longer is.
        """
        page: DiffPage = await self._call(workspace, "diff", operation_id, cursor=cursor, limit=limits.DIFF_PAGE_BYTES)
        return page

    async def stage(self, workspace: Workspace, operation_id: str) -> None:
        """Write the journal and the new files beside their targets, flushed.

        Raises: Refusal; then nothing of the patch is left below the root.
        Cancel: waits for the answer first.
        """
        told = await self._call(workspace, "stage", operation_id)
        self._seat(workspace, None).atomic = bool(told["atomic"])

    async def install(self, workspace: Workspace, operation_id: str) -> PatchReport:
        """Put the staged files in place. A report that is not clean asks for `restore`.

        Raises: Refusal OUTCOME_UNKNOWN where no answer came: `settle` knows more. Any other refusal: nothing
            was installed.
        Cancel: waits for the answer first.
        """
        report: PatchReport = await self._call(workspace, "install", operation_id)
        return report

    async def verify(self, workspace: Workspace, operation_id: str) -> PatchReport:
        """Hash every path of the patch again, here and not in the helper.

        Raises: Refusal TIMEOUT where the filesystem does not answer.
        Cancel: at once; the hashing ends by itself, and changes nothing.
        """
        after = self._after.get(operation_id)
        if after is None:
            raise Refusal("INTERNAL", "The runner does not know what this operation should have left behind.")
        return await self._turns.run(workspace, partial(self._look, workspace, after), "the files", _VERIFY_SECONDS)

    async def restore(self, workspace: Workspace, operation_id: str) -> PatchReport:
        """Put back what still is as the patch left it; `kept` names what somebody else changed.

        Cancel: waits for the answer first.
        """
        report: PatchReport = await self._call(workspace, "restore", operation_id)
        return report

    async def finish(self, workspace: Workspace, operation_id: str, state_dir: str | None = None) -> PatchReport:
        """Throw away what was set aside or staged; also ends a plan that is not wanted.

        Args:
            state_dir: Of the daemon that began the operation; None for this one.
        Returns: a report whose `rescued` names bytes that were found in place of planned ones.
        Cancel: waits for the answer first.
        """
        self._after.pop(operation_id, None)
        if not await _has_journals(state_dir):
            return PatchReport(clean=True)
        report: PatchReport = await self._call(workspace, "finish", operation_id, state_dir=state_dir)
        reading = self._reading.pop(operation_id, None) if report.clean else None
        await self._dismiss(reading or self._seat(workspace, state_dir))
        return report

    async def settle(
        self, workspace: Workspace, operation_id: str, state_dir: str | None = None
    ) -> tuple[str, PatchReport] | None:
        """Decide after a crash, from journal and hashes; None where there is no journal, so nothing was written.

        Nothing of the patch is left beside its targets afterwards. The answer stays the same until `finish`, which
        the caller asks for once it is recorded, so that a journal without further use goes.

        Args:
            state_dir: Of the daemon that began the operation; None for this one.
        Cancel: waits for the answer first.
        """
        if not await _has_journals(state_dir):
            return None
        settled: tuple[str, PatchReport, dict[str, str]] | Refusal | None
        try:
            settled = await self._call(workspace, "settle", operation_id, state_dir=state_dir)
        except Refusal as refusal:
            settled = refusal
        if settled is None or isinstance(settled, Refusal):
            await self._dismiss(self._seat(workspace, state_dir))  # nobody asks for `finish`
            if settled is not None:
                raise settled
            return None
        outcome, report, after = settled
        if outcome != "applied":
            return outcome, report
        self._after[operation_id] = after
        if not (await self.verify(workspace, operation_id)).clean:
            report = await self._call(workspace, "restore", operation_id, state_dir=state_dir)
            return ("failed_partial" if report.kept else "failed_rolled_back"), report
        try:
            return outcome, await self.finish(workspace, operation_id, state_dir)
        except Refusal as refused:  # it is applied all the same; what is set aside is swept when asked again
            _log.warning("could not tidy up after a patch", operation_id=operation_id, code=refused.code)
            return outcome, report

    async def accept(self, operation_id: str, state_dir: str | None = None) -> None:
        """Mark that the operator left the files of a patch as they are, half of it or not: `finish` goes by it.

        Raises: Refusal FILE_OPERATION_FAILED. Cancel: waits for the mark first.
        """
        where = self._state_dir if state_dir is None else state_dir
        await trio.to_thread.run_sync(journals.accept, where, operation_id)

    async def leftovers(self, state_dir: str | None = None) -> Sequence[str]:
        """Return the operations whose journals say that something of them may still lie beside their files.

        Raises: Refusal FILE_OPERATION_FAILED where the state directory is not there: nothing is known of them then.
        """
        where = self._state_dir if state_dir is None else state_dir
        if not await trio.to_thread.run_sync(journals.are_there, where, abandon_on_cancel=True):
            raise Refusal("FILE_OPERATION_FAILED", f"The state directory {display(where)} is not there.")
        return await trio.to_thread.run_sync(journals.leftovers, where)

    def helpers(self) -> dict[str, int]:
        """Return the process id of each workspace's helper, where one runs."""
        return {
            name: seat.channel.pid
            for (name, *rest), seat in self._seats.items()
            if rest == [self._folder, ""] and seat.channel is not None and seat.channel.usable
        }

    async def confinement(self, workspace: Workspace) -> Mapping[str, Any]:
        """Return what a helper found when it tried to break out; one is started for this workspace where none ever was.

        The kernel decides, so what one helper found holds for all.
        """
        if self._confined is not None:
            return self._confined
        seat = self._seat(workspace, None)
        async with seat.lock:
            try:
                await self._channel(seat, workspace, self._roots.of)
            except (Lost, Refusal) as error:
                return {"files": False, "network": False, "reason": f"the patch helper cannot be started: {error}"}
            return self._confined or {}

    def atomic(self, workspace: Workspace) -> bool | None:
        """Return whether the filesystems patched so far exchange names in one step; None where none was."""
        return self._seat(workspace, None).atomic

    async def _check_protected(self, workspace: Workspace, plan: PatchPlan) -> None:
        """Refuse what is protected by now: a link makes it so, or git's configuration, and both may have come since."""
        await self._turns.run(
            workspace,
            partial(require_unprotected, workspace, partial(self._roots.of, workspace), plan.files),
            "the root",
        )

    def _seat(self, workspace: Workspace, state_dir: str | None, *, readable: str = "") -> _Seat:
        folder = self._folder if state_dir is None else journals.folder(state_dir)
        if readable:  # in one order with the workspace's own, so that no plan sees half of what that installs
            new = replace(self._seat(workspace, state_dir), channel=None, readable=readable)
        else:
            new = _Seat(workspace, folder)
        return self._seats.setdefault((workspace.id, folder, readable), new)

    async def _call(
        self,
        workspace: Workspace,
        verb: str,
        operation_id: str,
        *,
        state_dir: str | None = None,
        **arguments: Any,
    ) -> Any:
        seat = self._reading.get(operation_id) or self._seat(workspace, state_dir)
        try:
            seat.lock.acquire_nowait()  # a checkpoint less than acquire(), which every verb would pay
        except trio.WouldBlock:
            await seat.lock.acquire()
        try:
            return await self._ask(seat, workspace, verb, operation_id, arguments)
        except Lost as lost:
            _log.warning("patch helper lost", verb=verb, reason=lost.reason, stderr=lost.stderr)
            if verb in _REPEATABLE or (verb in ("plan", "plan_undo") and not lost.timed_out):
                return await self._again(seat, workspace, verb, operation_id, arguments)
            if verb == "stage":
                await self._sweep(seat, workspace, operation_id)
            _refuse(verb, lost)
        finally:
            seat.lock.release()

    async def _dismiss(self, seat: _Seat) -> None:
        """End a helper for the journals of another daemon, which is of no more use; the workspace's own stays."""
        if seat.folder == self._folder and not seat.readable:
            return
        async with seat.lock:
            if seat.channel is not None and all(each is not seat for each in self._reading.values()):
                await seat.channel.close()

    async def _again(
        self, seat: _Seat, workspace: Workspace, verb: str, operation_id: str, arguments: Mapping[str, Any]
    ) -> Any:
        try:
            return await self._ask(seat, workspace, verb, operation_id, arguments)
        except Lost as lost:
            _log.error("patch helper lost twice", verb=verb, reason=lost.reason, stderr=lost.stderr)
            _refuse(verb, lost)

    async def _sweep(self, seat: _Seat, workspace: Workspace, operation_id: str) -> None:
        """Remove what a lost helper staged; where that fails too, recovery finds the journal."""
        try:
            await self._ask(seat, workspace, "finish", operation_id, {})
        except (Lost, Refusal) as error:
            _log.warning("staged files are left for recovery", operation_id=operation_id, reason=str(error))

    async def _ask(
        self, seat: _Seat, workspace: Workspace, verb: str, operation_id: str, arguments: Mapping[str, Any]
    ) -> Any:
        if self._cut_off:
            raise Lost("is no longer waited for, because the daemon ends", sent=False)
        channel = await self._channel(seat, workspace, self._root_in_place if verb in _REPEATABLE else self._roots.of)
        request = {"verb": verb, "operation": operation_id, **arguments}
        # A plan writes nothing, so a cancelled caller need not wait; every other answer says what is on disk.
        reply = await channel.call(request, _SECONDS[verb], shielded=verb not in _WRITES_NOTHING)
        try:
            return answer(verb, reply)
        except Refusal as refused:
            if refused.code == "INTERNAL":
                _log.error("patch helper at fault", verb=verb, operation_id=operation_id, stderr=channel.said())
            raise
        except (KeyError, TypeError, ValueError):
            nonsense = Lost("spoke nonsense", sent=True)
        await channel.kill()
        raise nonsense

    async def _channel(self, seat: _Seat, workspace: Workspace, look_up: Callable[[Workspace], Root]) -> Channel:
        if seat.channel is not None and seat.channel.usable and seat.workspace == workspace:
            return seat.channel
        if seat.channel is not None:
            await seat.channel.close()
            seat.channel = None
        seat.workspace = workspace
        root = await self._turns.run(workspace, partial(look_up, workspace), "the root")
        beside = await self._turns.run(workspace, partial(_named_outside, workspace, root), "the repository")
        try:
            channel = await Channel.start(self._argv)
        except OSError as error:
            raise Lost(f"could not be started ({error.strerror})", sent=False) from error
        try:
            opened = await channel.call(self._opening(seat, root, beside), limits.HELPER_START_SECONDS, shielded=True)
            self._confined = dict(answer("open", opened)["confined"])
            seat.channel = channel
        except (KeyError, TypeError, ValueError):
            raise Lost("spoke nonsense", sent=False) from None
        finally:
            if seat.channel is None:
                # Protects the end of a helper that nobody will use.
                with trio.move_on_after(limits.HELPER_STOP_SECONDS, shield=True):
                    await channel.kill()
        return channel

    def _opening(self, seat: _Seat, root: Root, beside: Sequence[str]) -> dict[str, Any]:
        workspace = seat.workspace
        return {
            "verb": "open",
            "root": workspace.root,
            "identity": list(root.identity),
            "journal": seat.folder,
            "readable": [seat.readable] if seat.readable else [],
            "umask": self._umask,
            "allow_submounts": workspace.allow_submounts,
            "hidden": list(workspace.hidden_paths),
            "protected": [*protected_paths(workspace), *beside],
            "git_protected": git_is_protected(workspace),
            "file_bytes": workspace.limits.file_bytes,
            "patch_bytes": workspace.limits.patch_bytes,
        }

    def _look(self, workspace: Workspace, after: Mapping[str, str]) -> PatchReport:
        until = time.monotonic() + limits.VERIFY_SECONDS
        root = self._root_in_place(workspace).unveiled()
        other: list[str] = []
        for path, version in after.items():
            if time.monotonic() > until:
                return PatchReport(clean=False, refusal=Refusal("TIMEOUT", "Verifying took too long.").body())
            if _version(root, path) != version:
                other.append(path)
        if not other:
            return PatchReport(clean=True)
        problem = Refusal(
            "VERSION_CONFLICT",
            f"{other[0]} is not what the patch put there, so the patch is taken back.",
            details={"path": other[0], "expected": after[other[0]], "actual": _version(root, other[0])},
        )
        return PatchReport(clean=False, kept=tuple(other), refusal=problem.body())

    def _root_in_place(self, workspace: Workspace) -> Root:
        """Return the root, and wait a little where another directory is at its place: nothing can be said meanwhile."""
        until = time.monotonic() + limits.RESTORE_WAIT_SECONDS
        while True:
            try:
                return self._roots.of(workspace)
            except Refusal:
                if time.monotonic() > until:
                    raise
            time.sleep(_ROOT_STEP_SECONDS)


async def _has_journals(state_dir: str | None) -> bool:
    """Return whether the journals of a named daemon are there: a helper would make a folder that was moved away."""
    if state_dir is None:
        return True
    return await trio.to_thread.run_sync(os.path.isdir, journals.folder(state_dir), abandon_on_cancel=True)


def _named_outside(workspace: Workspace, root: Root) -> tuple[str, ...]:
    """Return globs of what a worktree's repository names in it: the helper reads nothing outside the root."""
    common = git.common_directory(workspace.root) if git_is_protected(workspace) else None
    return () if common is None else gitconfig.places(root, common)


def _version(root: Root, path: str) -> str:
    try:
        return root.version(path, limits.PATCH_TREE_BYTES)
    except Refusal:
        return "other"  # a link or a directory by now


def _refuse(verb: str, lost: Lost) -> NoReturn:
    if verb in _WRITES_NOTHING or verb == "stage" or not lost.sent:
        code = "TIMEOUT" if lost.timed_out else "FILE_OPERATION_FAILED"
        raise Refusal(
            code,
            f"The patch helper {lost.reason}. Nothing was written.",
            next_step="Send the patch again.",
            retryable=True,
        ) from lost
    raise Refusal("OUTCOME_UNKNOWN", f"The patch helper {lost.reason} during {verb}.") from lost
