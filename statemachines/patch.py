"""The law of a patch: nothing is written before `applying`, nothing is claimed before the disk was read back."""

from __future__ import annotations

from statemachine import Event, State, StateMachine


class Patch(StateMachine):
    """One apply_patch or operation_undo, from its name to what is true on disk."""

    minted = State("The operation has an id, and its key is taken; nothing was written.", initial=True)
    planning = State("The patch is being read against the tree; nothing was written.")
    snapshotting = State("The bytes before are being kept and new contents staged; no file was changed.")
    applying = State("Renames may have happened; the journal holds the bytes before.")
    verifying = State("Every rename happened; the disk is being read back.")
    restoring = State("Files are being put back from the journal.")
    unknown = State("Renames may have happened, and the files cannot be seen now; the journal is kept.")
    checked = State("The patch fits the tree; nothing was written.", final=True)
    rejected = State("Nothing was written.", final=True)
    applied = State("Every file was read back and is as planned.", final=True)
    failed_rolled_back = State("Every file is as it was before.", final=True)
    failed_partial = State("Some files could not be put back; the outcome names them.", final=True)

    admitted = Event(minted.to(planning), name="The request holds the workspace and may look at the tree.")
    previewed = Event(planning.to(checked), name="The caller asked for check_only, and every chunk has its place.")
    planned = Event(planning.to(snapshotting), name="The net change of every path is known, with hashes on both sides.")
    staged = Event(
        snapshotting.to(applying),
        name="Journal and staged contents are flushed. Recorded durably before the first rename, so that a crash "
        "behind it is settled from the journal.",
    )
    installed = Event(applying.to(verifying), name="The helper says that every rename is done; that is not yet proof.")
    verified = Event(verifying.to(applied), name="The runner hashed every file and found what was planned.")
    refused = Event(
        minted.to(rejected) | planning.to(rejected) | snapshotting.to(rejected),
        name="Something stood against it before the first rename: the patch, a version, the disk, or the caller.",
    )
    failed = Event(
        applying.to(restoring) | verifying.to(restoring),
        name="A rename failed or a file is not as planned; half a patch is never left.",
    )
    restored = Event(restoring.to(failed_rolled_back), name="Every file was found as it was before.")
    third_party_kept = Event(
        restoring.to(failed_partial), name="Someone else changed a file meanwhile; their bytes are not overwritten."
    )
    sight_lost = Event(
        applying.to(unknown) | verifying.to(unknown) | restoring.to(unknown),
        name="The daemon died, or its files are out of reach or cannot be put back: the outcome is not claimed.",
    )
    found_applied = Event(unknown.to(applied), name="Journal and hashes say that every file is as planned.")
    found_rolled_back = Event(
        unknown.to(failed_rolled_back), name="Journal and hashes say that every file is as before, or was put back."
    )
    found_partial = Event(unknown.to(failed_partial), name="Some files are neither as planned nor could be put back.")
