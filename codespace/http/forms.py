"""The fields of a form that a page of the console posted: few, short, each at most once."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from quart import request

from codespace import limits
from codespace.errors import Refusal

_FIELDS = 20  # no form of ours has half as many


async def fields() -> Mapping[str, str]:
    """Return the fields of the request's form.

    Raises: Refusal INVALID_ARGUMENT for what no page of ours sends.
    """
    data = await request.get_data(as_text=False)
    assert isinstance(data, bytes)  # as asked for
    if request.mimetype != "application/x-www-form-urlencoded":  # the guard has seen to the size
        raise _wrong("is no form of the console's")
    try:
        pairs = parse_qsl(
            data.decode("ascii"), keep_blank_values=True, strict_parsing=bool(data), max_num_fields=_FIELDS
        )
    except ValueError:
        raise _wrong("cannot be read") from None
    if len({name for name, _ in pairs}) != len(pairs):
        raise _wrong("names a field twice")
    return dict(pairs)


def whole(text: str | None, name: str) -> int | None:
    """Return a number that was posted or asked for, None where it was left out. Raises: Refusal INVALID_ARGUMENT."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(limits.CURSOR_MAXIMUM))):
        raise _wrong(f"has no number in `{name}`")
    return int(text)


def _wrong(why: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"The request {why}; nothing was done.")
