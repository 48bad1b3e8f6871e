"""`codespace operations`: what was done, in tables for people and lines for programs, and what a person decides."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
import trio

from codespace import limits
from codespace.drive import Step
from codespace.errors import Refusal
from codespace.gateway.ledger import Ledger
from codespace.gateway.records import open_records
from codespace.runner.patch.patcher import Patcher
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults
from codespace.testing.site import tree

from ..gateway.test_predecessors import FILES, UPDATE, cut_off, staged, status_of


async def codespace(bench: Bench, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line on the bench's configuration, as the operator does."""
    argv = [sys.executable, "-m", "codespace", "operations", *words]
    return await trio.to_thread.run_sync(
        lambda: subprocess.run(
            argv, env={**os.environ, **bench.site.environ}, capture_output=True, text=True, check=False, timeout=60
        )
    )


async def test_operations_are_listed_and_shown_to_people_and_programs() -> None:
    async with open_bench(files=FILES) as bench:
        applied = await bench.call("apply_patch", patch=UPDATE, operation_key="the key")
        await bench.call("exec_command", command=["true"])
        listed = await codespace(bench, "list")
        assert (listed.returncode, listed.stderr) == (0, "")
        assert applied["operation_id"] in listed.stdout
        assert "exited" in listed.stdout
        lines = [json.loads(line) for line in (await codespace(bench, "list", "--json")).stdout.splitlines()]
        assert [line["kind"] for line in lines] == ["exec", "patch"]
        assert "Every operation has its end" in (await codespace(bench, "list", "--open")).stdout
        shown = (await codespace(bench, "show", applied["operation_id"])).stdout
        assert "the key" in shown
        assert "it can be undone" in shown
        facts = json.loads((await codespace(bench, "show", "--json", applied["operation_id"])).stdout)
        assert facts["snapshot_bytes"] > 0
        assert [event["event"] for event in facts["events"]][-1] == "verified"


async def test_a_list_that_leaves_old_ones_out_says_how_many() -> None:
    row = (
        "INSERT INTO operations (id, kind, tool, workspace_id, root, fingerprint, state, instance_id, created_at, "
        "finished_at, files, changes) SELECT 'op-' || value, iif(value % 2, 'patch', 'exec'), 't', 'main', '/', 'f', "
        "'applied', 'i', value, value, '[]', '[]' FROM json_each(?)"
    )
    async with open_bench(files=FILES) as bench:
        database = bench.daemon.settings.database
        with closing(sqlite3.connect(database)) as db, db:
            db.execute(row, (json.dumps(list(range(1, 2 * limits.LIST_ROWS + 6))),))
        every = f"codespace: the newest {limits.LIST_ROWS} are listed; {limits.LIST_ROWS + 5} older ones"
        for more in ([], ["--json"]):
            listed = await codespace(bench, "list", *more)
            assert len(listed.stdout.splitlines()) == limits.LIST_ROWS + (not more)
            assert listed.stderr.startswith(every), listed.stderr
        assert (await codespace(bench, "list", "--open")).stderr == ""


async def test_the_whole_diff_is_shown_however_long_it_is_and_acts_on_no_terminal() -> None:
    old = "".join(f"line {number}\n" for number in range(8000))
    text = "*** Begin Patch\n*** Delete File: big\n*** Add File: new\n+\x1b[2Jx\n*** End Patch"
    async with open_bench(files={"big": old}) as bench:
        applied = await bench.call("apply_patch", patch=text)
        assert applied["diff_truncated"] is True
        shown = (await codespace(bench, "show", "--diff", applied["operation_id"])).stdout
        assert "-line 0\n" in shown
        assert "-line 7999\n" in shown
        assert "\x1b" not in shown
        told = (await codespace(bench, "show", "--diff", "--json", applied["operation_id"])).stdout
        assert "\x1b" not in told
        exact = "".join(json.loads(page)["diff"] for page in told.splitlines())
        assert "+\x1b[2Jx\n" in exact
        assert exact.count("\n-line ") == 8000
        assert len(exact) > limits.DIFF_BYTES


async def test_of_a_diff_in_a_damaged_journal_is_said_that_it_cannot_be_read() -> None:
    async with open_bench(files=FILES) as bench:
        applied = (await bench.call("apply_patch", patch=UPDATE))["operation_id"]
        manifest = Path(bench.daemon.settings.state_dir, "journal", applied, "manifest.json")
        for damaged in (b"[1]", b'{"diff": 5}', b"[" * 100_000, b"\xff"):
            manifest.write_bytes(damaged)
            told = await codespace(bench, "show", "--diff", applied)
            assert (told.returncode, "cannot be read" in told.stderr) == (2, True)


async def test_an_operation_has_its_id_under_one_name_wherever_a_program_reads_it() -> None:
    async with open_bench(files=FILES) as bench:
        applied = (await bench.call("apply_patch", patch=UPDATE))["operation_id"]
        for words in (("list", "--json"), ("show", "--json", applied), ("show", "--json", "--diff", applied)):
            told = json.loads((await codespace(bench, *words)).stdout.splitlines()[0])
            assert told["operation_id"] == applied


async def test_what_was_forgotten_is_gone_and_recorded_so_and_cannot_be_undone() -> None:
    async with open_bench(files=FILES) as bench:
        applied = (await bench.call("apply_patch", patch=UPDATE))["operation_id"]
        journal = Path(bench.daemon.settings.state_dir, "journal", applied)
        assert journal.exists()
        assert (await codespace(bench, "forget", applied)).returncode == 0
        assert not journal.exists()
        assert "none is kept" in (await codespace(bench, "show", applied)).stdout
        again = await codespace(bench, "forget", applied)
        assert (again.returncode, "SNAPSHOT_EXPIRED" in again.stderr) == (2, True)
        events = (await bench.call("operation_status", operation_id=applied))["events"]
        assert events[-1]["event"] == "forgotten"


async def test_the_journal_of_an_applied_patch_that_is_not_recorded_so_is_not_forgotten(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=4, state="applying", created_at=bench.clock())
        assert (tmp_path / "journal" / left / "finished").exists()
        refused = await codespace(bench, "forget", left)
        assert (refused.returncode, f"codespace operations settle {left}" in refused.stderr) == (2, True)
        await bench.restart()
        assert await status_of(bench, left) == "applied"
        assert (await codespace(bench, "forget", left)).returncode == 0


async def test_bytes_whose_removal_cannot_be_recorded_are_kept() -> None:
    async with open_bench(files=FILES) as bench:
        applied = (await bench.call("apply_patch", patch=UPDATE))["operation_id"]
        with sqlite3.connect(bench.daemon.settings.database) as db:  # fails as a full disk does
            db.execute(
                "CREATE TRIGGER full BEFORE INSERT ON events WHEN NEW.event = 'forgotten' BEGIN SELECT json('x'); END"
            )
        db.close()
        refused = await codespace(bench, "forget", applied)
        assert (refused.returncode, "STORE_UNAVAILABLE" in refused.stderr) == (2, True)
        assert "bytes are kept" in (await codespace(bench, "show", applied)).stdout
        with sqlite3.connect(bench.daemon.settings.database) as db:
            db.execute("DROP TRIGGER full")
        db.close()
        assert (await codespace(bench, "forget", applied)).returncode == 0


async def test_a_journal_that_cannot_be_removed_is_said_to_be_left() -> None:
    async with open_bench(files=FILES) as bench:
        applied = (await bench.call("apply_patch", patch=UPDATE))["operation_id"]
        journal = Path(bench.daemon.settings.state_dir, "journal")
        place = journal / applied / "mounted"
        place.mkdir()
        mounted = await trio.run_process(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=False)
        if mounted.returncode != 0:
            pytest.skip("nothing can be mounted here")
        refused = await codespace(bench, "forget", applied)
        await trio.run_process(["umount", str(place)])
        assert (refused.returncode, "FILE_OPERATION_FAILED" in refused.stderr) == (2, True)
        assert str(journal) in refused.stderr


@pytest.mark.parametrize("ends_as", ["rejected", "failed_partial", "applied"])
async def test_bytes_that_a_patch_rescued_are_told_however_it_ends_and_forgotten_only_on_purpose(ends_as: str) -> None:
    faults = Faults()
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:

        async def change_a() -> None:
            (bench.root / "a").write_text("theirs\n")

        async def write_beside() -> None:
            operation = (await bench.call("operation_status", operation_key="k"))["operation_id"]
            beside = bench.root / f".codespace-{operation[-12:]}-0.staged"
            beside.unlink(missing_ok=True)
            beside.write_text("only here\n")
            if ends_as == "rejected":
                raise Refusal("FILE_OPERATION_FAILED", "On order. Nothing was written.")

        if ends_as == "rejected":
            faults.order("after", "stage", write_beside)
        else:
            faults.order("before", "finish", write_beside)
        if ends_as == "failed_partial":
            faults.order("before", "verify", change_a)
        if ends_as == "applied":
            told = await bench.call("apply_patch", patch=UPDATE, operation_key="k")
        else:
            with pytest.raises(Refusal) as caught:
                await bench.call("apply_patch", patch=UPDATE, operation_key="k")
            told = caught.value.details or {}
        assert (told["status"], told["rescued"]) == (ends_as, ["rescued/0-0"])
        status = await bench.call("operation_status", operation_key="k")
        assert [each["details"] for each in status["events"] if each["event"] == "rescued"] == [
            {"rescued": ["rescued/0-0"]}
        ]
        operation_id = status["operation_id"]
        rescued = Path(bench.daemon.settings.state_dir, "journal", operation_id, "rescued", "0-0")
        assert rescued.read_text() == "only here\n"
        shown = (await codespace(bench, "show", operation_id)).stdout
        assert str(rescued) in shown
        assert ("it can be undone" in shown) == (ends_as == "applied")
        assert json.loads((await codespace(bench, "show", "--json", operation_id)).stdout)["rescued"] == [str(rescued)]
        refused = await codespace(bench, "forget", operation_id)
        assert (refused.returncode, str(rescued) in refused.stderr, "--rescued" in refused.stderr) == (2, True, True)
        assert rescued.exists()
        assert (await codespace(bench, "forget", "--rescued", operation_id)).returncode == 0
        assert not rescued.exists()


async def test_a_patch_that_waits_for_the_operator_is_put_back_or_left_as_he_says(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        created_at = bench.clock() - limits.JOURNAL_AGE_SECONDS - 60
        left = await cut_off(bench, tmp_path / "one", verbs=1, state="applying", created_at=created_at)
        other = await cut_off(bench, tmp_path / "two", verbs=1, state="applying", created_at=created_at)
        await bench.restart()
        assert await status_of(bench, left) == "unknown"
        assert left in (await codespace(bench, "list", "--open")).stdout
        settled = await codespace(bench, "settle", left)
        assert (settled.returncode, settled.stdout) == (0, f"{left}: failed_rolled_back\n")
        accepted = await codespace(bench, "settle", "--accept", other)
        assert accepted.stdout == f"{other}: failed_partial\n"
        status = await bench.call("operation_status", operation_id=other)
        assert "left its files as they are" in status["outcome"]["message"]
        again = await codespace(bench, "settle", left)
        assert (again.returncode, "INVALID_ARGUMENT" in again.stderr) == (2, True)
        assert f"codespace operations show {left}" in again.stderr


async def test_a_patch_is_not_accepted_while_a_daemon_puts_it_back(tmp_path: Path) -> None:
    faults = Faults()
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:
        left = await cut_off(bench, tmp_path, verbs=1, state="applying", created_at=bench.clock())
        refused: list[subprocess.CompletedProcess[str]] = []

        async def accept() -> None:
            refused.append(await codespace(bench, "settle", "--accept", left))

        faults.order("before", "settle", accept)
        await bench.restart()
        assert [(each.returncode, "WORKSPACE_BUSY" in each.stderr) for each in refused] == [(2, True)]
        status = await bench.call("operation_status", operation_id=left)
        assert (status["status"], status["outcome"]["code"]) == ("failed_rolled_back", "PATCH_ROLLED_BACK")


@pytest.mark.parametrize(("words", "ends_as"), [((), "failed_rolled_back"), (("--accept",), "failed_partial")])
@pytest.mark.parametrize("verbs", [1, 2])
async def test_a_patch_whose_end_a_start_could_not_record_can_be_settled_while_that_daemon_runs(
    verbs: int, words: tuple[str, ...], ends_as: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: Ledger, steps: Sequence[Step]) -> None:
        raise Refusal("STORE_UNAVAILABLE", "The disk is full.", details={"outcome": "nothing"})

    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=verbs, state="applying", created_at=bench.clock())
        if verbs == 2:  # not as it left them, so that all is put back
            (bench.root / "b").unlink()
            ends_as = "failed_partial"
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "apply", away)
            await bench.restart()
        assert await status_of(bench, left) == "applying"
        settled = await codespace(bench, "settle", *words, left)
        assert (settled.stderr, settled.stdout) == ("", f"{left}: {ends_as}\n")


async def test_behind_half_a_patch_that_was_accepted_what_lay_beside_its_files_is_thrown_away(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=1, state="applying", created_at=bench.clock())
        (tmp_path / "journal" / left / "installing").touch()  # and then it was killed, before the first rename
        assert (await codespace(bench, "settle", "--accept", left)).returncode == 0
        assert tree(bench.root) == {"a": b"one\n", "b": b"one\n"}
        assert staged(bench.root) == []
        marks = os.listdir(tmp_path / "journal" / left)
        assert ("finished" in marks, "rescued" in marks) == (True, False)


async def test_a_snapshot_in_which_nothing_was_rescued_is_forgotten_as_any_other() -> None:
    async with open_bench(files=FILES) as bench:
        applied = (await bench.call("apply_patch", patch=UPDATE))["operation_id"]
        journal = Path(bench.daemon.settings.state_dir, "journal", applied)
        (journal / "rescued").mkdir()  # and the helper died
        assert (await codespace(bench, "forget", applied)).returncode == 0
        assert not journal.exists()


async def test_a_patch_that_was_accepted_in_a_root_that_was_replaced_can_be_forgotten(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=1, state="applying", created_at=bench.clock())
        (tmp_path / "journal" / left / "installing").touch()
        refused = await codespace(bench, "forget", left)
        assert (refused.returncode, "INVALID_ARGUMENT" in refused.stderr) == (2, True)
        away = bench.root.with_name("away")
        bench.root.rename(away)
        shutil.copytree(away, bench.root)
        accepted = await codespace(bench, "settle", "--accept", left)
        assert accepted.stdout == f"{left}: failed_partial\n"
        assert "Another directory is at the root" in accepted.stderr
        assert "Traceback" not in accepted.stderr
        forgotten = await codespace(bench, "forget", left)
        assert (forgotten.returncode, ".codespace-*" in forgotten.stdout) == (0, True)
        assert os.listdir(tmp_path / "journal") == []


async def test_a_patch_whose_state_directory_would_lie_below_a_file_is_accepted(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        place = tmp_path / "place"
        left = await cut_off(bench, place / "state", verbs=1, state="applying", created_at=bench.clock())
        shutil.rmtree(place)
        place.touch()
        refused = await codespace(bench, "settle", left)
        assert (refused.returncode, "OUTCOME_UNKNOWN" in refused.stderr) == (2, True)
        accepted = await codespace(bench, "settle", "--accept", left)
        assert accepted.stdout == f"{left}: failed_partial\n"
        assert "none is kept" in (await codespace(bench, "show", left)).stdout


async def test_a_patch_whose_root_is_gone_is_accepted(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=1, state="applying", created_at=bench.clock())
        bench.root.rename(bench.root.with_name("away"))  # behind the start of the command, which refuses such settings
        place = bench.daemon.settings
        async with (
            Patcher(place.state_dir) as patcher,
            open_records(place.database, place.state_dir, place.workspaces, bench.clock, patcher) as records,
        ):
            assert (await records.settle(left, accept=True)).state == "failed_partial"
        bench.root.with_name("away").rename(bench.root)


async def test_what_a_daemon_that_runs_may_not_put_back_now_is_told_and_can_be_accepted(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=2, state="applying", created_at=bench.clock())
        manifest = tmp_path / "journal" / left / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"mounts": {".": "away"}}))
        await bench.restart()  # its helper was refused, and must not hold the journal from then on
        settled = await codespace(bench, "settle", left)
        assert (settled.returncode, "OUTCOME_UNKNOWN" in settled.stderr) == (2, True)
        assert "on another filesystem than when it was patched" in settled.stderr
        assert "with --accept" in settled.stderr
        accepted = await codespace(bench, "settle", "--accept", left)
        assert (accepted.returncode, accepted.stdout) == (0, f"{left}: failed_partial\n")


async def test_what_the_operator_left_as_it_is_is_put_back_by_no_daemon_that_did_not_hear_of_it(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=2, state="applying", created_at=bench.clock())
        before = tree(bench.root)
        (tmp_path / "journal" / left / "accepted").touch()  # and his command ended before it was recorded
        await bench.restart()
        assert (await status_of(bench, left), tree(bench.root)) == ("unknown", before)
        assert (await codespace(bench, "settle", "--accept", left)).stdout == f"{left}: failed_partial\n"


async def test_a_journal_that_cannot_be_marked_is_named_and_one_that_was_moved_away_needs_no_mark(
    tmp_path: Path,
) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=1, state="applying", created_at=bench.clock())
        await bench.stop()
        journal = tmp_path / "journal" / left
        (journal / "accepted").symlink_to("nowhere")  # what is there cannot be opened as a mark
        refused = await codespace(bench, "settle", "--accept", left)
        assert (refused.returncode, f"({journal}) cannot be marked" in refused.stderr) == (2, True)
        journal.rename(tmp_path / "moved")
        accepted = await codespace(bench, "settle", "--accept", left)
        assert (accepted.returncode, accepted.stdout) == (0, f"{left}: failed_partial\n")


async def test_an_unknown_id_is_said_to_be_unknown() -> None:
    async with open_bench() as bench:
        for word in ("show", "settle", "forget"):
            said = await codespace(bench, word, "op-nothing")
            assert (said.returncode, "OPERATION_NOT_FOUND" in said.stderr) == (2, True)
