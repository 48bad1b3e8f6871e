"""One tool as a row of data: its name, what a model is told, what it takes and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from codespace.protocol.arguments import Argument, refuse
from codespace.protocol.names import sort_out

Group = Literal["files", "exec", "approvals", "work"]


@dataclass(frozen=True, slots=True)
class Hints:
    """The four annotations, all said aloud: a client that misses one asks its user on every call."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """A row of the table. `exactly_one` and `not_both` name arguments that exclude each other."""

    name: str
    title: str
    group: Group
    description: str
    hints: Hints
    arguments: tuple[Argument, ...]
    result: Mapping[str, Any]
    exactly_one: tuple[str, ...] = ()
    not_both: tuple[str, ...] = ()
    withheld: tuple[Argument, ...] = ()
    """Optional arguments that a server does not offer: they keep their defaults, and are unknown to it."""

    def without(self, *names: str) -> Tool:
        """Return the tool as a server offers it that has no use for some of its optional arguments."""
        gone = tuple(argument for argument in self.arguments if argument.name in names and not argument.required)
        if not gone:
            return self
        kept = tuple(argument for argument in self.arguments if argument not in gone)
        return replace(self, arguments=kept, withheld=(*self.withheld, *gone))

    def take(self, sent: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[str]]:
        """Return (every argument with defaults filled in, names that are ignored).

        Args:
            sent: What the client sent; null for an optional argument counts as absent.
            prefix: Stands before field names in errors, for arguments inside an argument.
        Raises: Refusal INVALID_ARGUMENT; nothing was done.
        """
        ignored = sort_out(sent, self.arguments, prefix)
        taken = {argument.name: self._one(argument, sent, prefix, ignored) for argument in self.arguments}
        taken |= {argument.name: argument.default for argument in self.withheld}
        given = [name for name in (*self.exactly_one, *self.not_both) if taken.get(name) not in (None, False)]
        if self.exactly_one and len(given) != 1:
            raise refuse(
                prefix + self.exactly_one[0], f"or else `{self.exactly_one[1]}`, exactly one of them, is needed"
            )
        if self.not_both and len(given) > 1:
            raise refuse(prefix + self.not_both[0], f"and `{self.not_both[1]}` exclude each other")
        return taken, ignored

    def _one(self, argument: Argument, sent: Mapping[str, Any], prefix: str, ignored: list[str]) -> Any:
        field = prefix + argument.name
        value = sent.get(argument.name)
        if value is not None:
            return argument.take(value, field)
        if not argument.required:
            return argument.default
        unknown = f" (unknown here: {', '.join(ignored[:5])})" if ignored else ""
        raise refuse(field, f"is missing{unknown}", next_step=f"Send `{field}`: {argument.description}")
