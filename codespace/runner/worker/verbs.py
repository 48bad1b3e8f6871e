"""The verbs of the runner as they cross the worker's socket: one row each, the rest is read from the port.

A verb that is added to `contract.Runner` needs a row here and nothing else on either side.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, Literal, get_type_hints

from codespace.contract import Runner, Workspace
from codespace.runner.worker.codec import Codec, codec, recalled
from codespace.runner.worker.frames import BadFrame

Loss = Literal["again", "nothing", "unseen", "gone"]

ROWS: Final[Mapping[str, Loss]] = {
    # They change nothing, or the same twice as once: asked again of the next worker.
    "describe": "again",
    "command_sandbox": "again",
    "hard_links": "again",
    "read": "again",
    "find": "again",
    "search": "again",
    "versions": "again",
    "resolve_program": "again",
    "check_directory": "again",
    "kept_diff": "again",
    "kept_output": "again",
    "leftovers": "again",
    "expired": "again",
    "discard": "again",
    "restore": "again",
    "finish": "again",
    "settle": "again",
    # What a worker holds ends with it, and nothing was installed.
    "plan": "nothing",
    "plan_undo": "nothing",
    "diff": "nothing",
    "stage": "nothing",
    # It may have happened; journal or exit record will tell.
    "install": "unseen",
    "verify": "unseen",
    "spawn": "unseen",
    # About a process, which ended with its worker.
    "output": "gone",
    "wait_output": "gone",
    "wait_decisions": "gone",
    "write_stdin": "gone",
    "resize": "gone",
    "terminate": "gone",
}
"""What a lost reply means. Where the request was not sent yet, nothing happened, whichever verb it is."""

TOLD: Final = frozenset({"cut_off", "forget"})
"""Sent without waiting: they answer nothing."""

HELD: Final = frozenset({"check", "knows", "process", "wait_exit"})
"""Answered on the gateway's side: from the arguments alone, or from the worker's news."""


class Verb:
    """One verb with its wire form.

    Attributes:
        loss: What a lost reply means.
    """

    def __init__(self, name: str, loss: Loss) -> None:
        self.name = name
        self.loss: Loss = loss
        port = getattr(Runner, name)
        hints = get_type_hints(port)
        signature = inspect.signature(port)
        self._signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        self._parts: dict[str, Codec] = {each: _part(hints[each]) for each in self._signature.parameters}
        self._result = codec(hints["return"])

    def bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, defaults filled in. Raises: TypeError."""
        bound = self._signature.bind(*arguments, **named)
        bound.apply_defaults()
        return bound.arguments

    def encode_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: part.encode(arguments[name]) for name, part in self._parts.items()}

    def decode_arguments(self, sent: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments to call the runner with, by place and by name. Raises: BadFrame."""
        if not isinstance(sent, dict) or sent.keys() != self._parts.keys():
            raise BadFrame(f"the arguments of {self.name} are not as they must be")
        by_place: list[Any] = []
        by_name: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            value = self._parts[name].decode(sent[name])
            if parameter.kind is parameter.KEYWORD_ONLY:
                by_name[name] = value
            else:
                by_place.append(value)
        return by_place, by_name

    def encode_result(self, result: Any) -> Any:
        return self._result.encode(result)

    def decode_result(self, sent: Any) -> Any:
        """Raises: BadFrame."""
        return self._result.decode(sent)


def _part(hint: Any) -> Codec:
    return _WORKSPACE if hint is Workspace else codec(hint)


_WORKSPACE: Final = recalled(codec(Workspace))
VERBS: Final[Mapping[str, Verb]] = {name: Verb(name, loss) for name, loss in ROWS.items()}
TELLINGS: Final[Mapping[str, Verb]] = {name: Verb(name, "again") for name in sorted(TOLD)}
