"""What one patch does to each path, as plain records that the journal keeps."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from codespace.beneath import STAGED_PREFIX

_SHORT_CHARACTERS: Final = 12  # of an operation id in staged names; O_EXCL guards what chance leaves

PROBE: Final = -1
"""In place of a slot's number: the files by which a filesystem was tried."""

Action = Literal["create", "replace", "remove"]

FORMAT: Final = 2
"""Of manifest.json; one of another format is never acted on."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a file carried beside its bytes, for a reader of the journal who has to make it again."""

    mode: int
    owner: tuple[int, int]
    attributes: Mapping[str, str]
    """Extended attributes, access lists among them; values in base64."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The net effect on one path. A move is two slots: one made from `source`, and one removed."""

    number: int
    action: Action
    path: str
    beside: str
    """Where the new bytes are staged, and where the old ones lie after the change until they are thrown away."""
    before: str
    after: str
    source: str | None
    """The path whose owner, mode and attributes the new file takes; None for a file that is new."""
    mode: int | None
    """Permission bits that the new file must have; None where those of `source`, or the umask, decide."""
    metadata: Metadata | None = None
    """Of the file that is replaced or removed."""
    given: Metadata | None = None
    """What the new file must carry, where an undo makes an old one again; None where `source` or the umask decide."""

    def with_metadata(self, metadata: Metadata) -> Slot:
        """Return the same slot with what its old file carries."""
        return replace(self, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that the patch makes: under a staged name first, so that it is known later whose it is."""

    path: str
    beside: str
    mode: int | None = None
    """Permission bits where an undo makes it again; None where the umask decides."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """A directory that an undo takes away, once it is verified, if it is empty then."""

    path: str
    mode: int
    """Permission bits that it had, for the undo of the undo."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that has to be known to complete or to take back one patch."""

    operation: str
    root: str
    identity: tuple[int, int]
    directories: tuple[Directory, ...]
    """Parents before children."""
    slots: tuple[Slot, ...]
    changes: tuple[Mapping[str, Any], ...]
    """The net changes in the words of the contract."""
    emptied: tuple[Emptied, ...] = ()
    """Children before parents."""
    mounts: Mapping[str, str] | None = None
    """Where each directory is mounted that is not on the root's own filesystem; None where that was not noted."""

    @property
    def parents(self) -> list[str]:
        """Every directory that something is renamed in."""
        paths = [*(slot.path for slot in self.slots), *(directory.path for directory in self.directories)]
        return sorted({path.rpartition("/")[0] or "." for path in paths})


def staged_name(operation: str, what: int | str, kind: str = "staged") -> str:
    """Return a name that no listing shows, for something that an operation puts below the root."""
    return f"{STAGED_PREFIX}{operation[-_SHORT_CHARACTERS:]}-{what}.{kind}"


def spare_name(slot: Slot) -> str:
    """Return the third path that two names need to be exchanged without the kernel's help."""
    return f"{slot.beside.removesuffix('.staged')}.spare"


def pack(manifest: Manifest) -> dict[str, Any]:
    """Return plain JSON values for `manifest`."""
    return {
        "format": FORMAT,
        "operation": manifest.operation,
        "root": manifest.root,
        "identity": list(manifest.identity),
        "directories": [[each.path, each.beside, each.mode] for each in manifest.directories],
        "emptied": [[each.path, each.mode] for each in manifest.emptied],
        "mounts": manifest.mounts,
        "slots": [_pack_slot(slot) for slot in manifest.slots],
        "changes": [dict(change) for change in manifest.changes],
    }


def unpack(packed: Mapping[str, Any]) -> Manifest:
    """Rebuild a manifest.

    Raises: ValueError, KeyError or TypeError for one of another format or shape.
    """
    if packed["format"] != FORMAT:
        raise ValueError(f"manifest format {packed['format']!r} is not {FORMAT}")
    _require_shape(packed)
    device, inode = packed["identity"]
    return Manifest(
        operation=packed["operation"],
        root=packed["root"],
        identity=(device, inode),
        directories=tuple(Directory(path, beside, mode) for path, beside, mode in packed["directories"]),
        slots=tuple(_unpack_slot(slot) for slot in packed["slots"]),
        changes=tuple(packed["changes"]),
        emptied=tuple(Emptied(path, mode) for path, mode in packed["emptied"]),
        mounts=packed.get("mounts"),
    )


def _require_shape(packed: Mapping[str, Any]) -> None:
    """Look at each value before anything is done by it.

    Raises: ValueError, KeyError or TypeError.
    """
    texts: list[Any] = [packed["operation"], packed["root"]]
    numbers: list[Any] = [*packed["identity"]]
    modes: list[Any] = []
    owners: list[Any] = []
    for path, beside, mode in packed["directories"]:
        texts += [path, beside]
        modes += [] if mode is None else [mode]
    for path, mode in packed["emptied"]:
        texts.append(path)
        modes.append(mode)
    for slot in packed["slots"]:
        texts += [slot[name] for name in ("path", "beside", "before", "after")]
        texts += [] if slot["source"] is None else [slot["source"]]
        numbers.append(slot["number"])
        modes += [] if slot["mode"] is None else [slot["mode"]]
        if slot["action"] not in get_args(Action):
            raise ValueError("a slot has no action")
        for metadata in (slot[name] for name in ("metadata", "given") if name in slot):
            owners += metadata["owner"]
            modes.append(metadata["mode"])
            texts += [text for pair in (metadata["attributes"] | {}).items() for text in pair]
    for change in packed["changes"]:
        texts += [change[name] for name in ("path", "kind", "before_version", "after_version")]
        texts += [change.get(name, "") for name in ("from_path", "mode")]
    paths = [slot["path"] for slot in packed["slots"]]
    named = {change.get("from_path", change["path"]) for change in packed["changes"]}
    if len({*paths}) < len(paths) or not named | {change["path"] for change in packed["changes"]} <= {*paths}:
        raise ValueError("a change has not one slot for each of its paths")
    for number, data in (packed.get("before", {}) | {}).items():
        int(number)
        base64.b64decode(data)
    for pair in ({} | (packed.get("mounts") or {})).items():
        texts += pair
    whole = all(isinstance(text, str) for text in texts)
    for values, least, most in ((numbers, 0, 1 << 64), (modes, 0, 0o7777), (owners, -1, (1 << 32) - 1)):
        whole &= all(isinstance(value, int) and least <= value <= most for value in values)
    if not whole:
        raise TypeError("a value is none that its field may have")


def _pack_slot(slot: Slot) -> dict[str, Any]:
    packed: dict[str, Any] = {
        "number": slot.number,
        "action": slot.action,
        "path": slot.path,
        "beside": slot.beside,
        "before": slot.before,
        "after": slot.after,
        "source": slot.source,
        "mode": slot.mode,
    }
    for name, metadata in (("metadata", slot.metadata), ("given", slot.given)):
        if metadata is not None:
            packed[name] = {
                "mode": metadata.mode,
                "owner": list(metadata.owner),
                "attributes": dict(metadata.attributes),
            }
    return packed


def _unpack_slot(packed: Mapping[str, Any]) -> Slot:
    fields = dict(packed)
    for name in {"metadata", "given"} & fields.keys():
        user, group = fields[name]["owner"]
        fields[name] = Metadata(fields[name]["mode"], (user, group), fields[name]["attributes"])
    return Slot(**fields)
