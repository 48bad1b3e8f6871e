"""How values of the port cross the worker's socket: made from their type hints, so that no type needs a line here.

A dataclass is an object with all its fields, bytes are base64, tuples are lists. Decoding takes exactly
what encoding gives: what comes from the other process is checked before anything believes its type.
"""

from __future__ import annotations

import base64
import binascii
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from codespace.runner.worker.frames import BadFrame

Turn = Callable[[Any], Any]


class Codec(NamedTuple):
    """Both ways of one type. `decode` raises BadFrame."""

    encode: Turn
    decode: Turn


def recalled(part: Codec) -> Codec:
    """Return a codec that does not turn the same value twice in a row: for what nearly every request carries."""
    encoded: tuple[Any, Any] = (object(), None)
    decoded: tuple[Any, Any] = (object(), None)

    def encode(value: Any) -> Any:
        nonlocal encoded
        if encoded[0] is not value:
            encoded = (value, part.encode(value))
        return encoded[1]

    def decode(value: Any) -> Any:
        nonlocal decoded
        if decoded[0] != value:
            decoded = (value, part.decode(value))
        return decoded[1]

    return Codec(encode, decode)


def _same(value: Any) -> Any:
    return value


@cache
def codec(hint: Any) -> Codec:
    """Return the codec of a type. Raises: TypeError where it has no form on the wire."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return Codec(_same, _same)
    if hint in (None, type(None)):
        return Codec(_same, _only(type(None)))
    if hint is float:
        return Codec(_same, _only(int, float))
    if hint in (str, int, bool):
        return Codec(_same, _only(hint))
    if hint is bytes:
        return Codec(lambda value: base64.b64encode(value).decode("ascii"), _bytes)
    if origin is Literal:
        return Codec(_same, _one_of(arguments))
    if origin in (Union, types.UnionType):
        return _optional(hint, arguments)
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not ...):
        return _fixed(tuple(codec(each) for each in arguments))
    if origin in (tuple, list, Sequence):
        return _row(codec(arguments[0]), list if origin is list else tuple)
    if origin in (dict, Mapping) and arguments[0] is str:
        return _table(codec(arguments[1]))
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint)
    raise TypeError(f"{hint} has no form on the worker's wire")


def _only(*kinds: type) -> Turn:
    def decode(value: Any) -> Any:
        if type(value) not in kinds:  # exactly: a truth value is no number
            raise BadFrame(f"a {type(value).__name__} is where a {kinds[0].__name__} belongs")
        return value

    return decode


def _one_of(choices: tuple[Any, ...]) -> Turn:
    def decode(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise BadFrame("a word is none of those that may stand in its place")
        return value

    return decode


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_only(str)(value), validate=True)
    except (binascii.Error, ValueError):
        raise BadFrame("bytes are no base64") from None


def _optional(hint: Any, arguments: tuple[Any, ...]) -> Codec:
    kinds = [each for each in arguments if each is not type(None)]
    if len(kinds) != 1:
        raise TypeError(f"{hint} has no form on the worker's wire: one type or None")
    encode, decode = codec(kinds[0])
    return Codec(
        lambda value: None if value is None else encode(value), lambda value: None if value is None else decode(value)
    )


def _fixed(items: tuple[Codec, ...]) -> Codec:
    def decode(value: Any) -> tuple[Any, ...]:
        if len(_only(list)(value)) != len(items):
            raise BadFrame("a list is not as long as it must be")
        return tuple(item.decode(each) for item, each in zip(items, value, strict=True))

    return Codec(lambda value: [item.encode(each) for item, each in zip(items, value, strict=True)], decode)


def _row(item: Codec, kind: Callable[[Any], Any]) -> Codec:
    encode, decode = item
    encode_all: Turn = list if encode is _same else lambda value: [encode(each) for each in value]
    return Codec(encode_all, lambda value: kind(decode(each) for each in _only(list)(value)))


def _table(item: Codec) -> Codec:
    encode, decode = item
    encode_all: Turn = dict if encode is _same else lambda value: {name: encode(each) for name, each in value.items()}
    return Codec(encode_all, lambda value: {name: decode(each) for name, each in _only(dict)(value).items()})


def _record(kind: type) -> Codec:
    hints = get_type_hints(kind)
    parts = [(each.name, codec(hints[each.name])) for each in fields(kind)]
    names = {name for name, _ in parts}

    def encode(value: Any) -> dict[str, Any]:
        return {name: part.encode(getattr(value, name)) for name, part in parts}

    def decode(value: Any) -> Any:
        if _only(dict)(value).keys() != names:
            raise BadFrame(f"the fields of a {kind.__name__} are not as they must be")
        return kind(**{name: part.decode(value[name]) for name, part in parts})

    return Codec(encode, decode)
