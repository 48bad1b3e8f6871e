"""Structured logs on stderr: for a person or a program, redacted, harmless, never waited for.

Records of the standard library's logging (Hypercorn, the MCP SDK) arrive in the same form; their
texts were not written with secrets in mind, so only what comes before the first value is kept.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import structlog

from codespace.log import trace
from codespace.log.redaction import REDACTED, Redaction
from codespace.log.sink import Sink

__all__ = ["REDACTED", "Redaction", "configure", "get_logger", "hide"]

_REDACTION: Final = Redaction()
# One for the process: a secret must be hidden from every logger, whoever made it.
_FOREIGN_CHARACTERS: Final = 120  # a log text of a library that is longer carries data


def hide(*secrets: str | None) -> None:
    """Take these values out of everything that is logged from now on."""
    _REDACTION.hide(*secrets)


def get_logger(**bound: Any) -> structlog.typing.FilteringBoundLogger:
    """Return a logger; what is bound stands in each of its lines."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(**bound)
    return logger


def configure(*, level: str, form: str, descriptor: int = 2) -> None:
    """Set up logging for this process.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `console` or `json`.
        descriptor: Where lines go; it is never closed.
    """
    sink = Sink(descriptor)
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            trace.describe,
            _REDACTION,
            _renderer(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Foreign()]
    # Below warning, libraries log the traffic itself.
    root.setLevel(max(number, logging.WARNING))


def _renderer(form: str) -> Any:
    if form == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)


class _Foreign(logging.Handler):
    """Hands records of other libraries on, without the values in them."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "place": f"{record.module}:{record.lineno}"}
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
        structlog.get_logger().log(record.levelno, _harmless(str(record.msg)), **fields)


def _harmless(template: str) -> str:
    """Return the fixed start of a text: what comes before a colon, a quote or a line end."""
    for mark in ("\n", ":", "'", '"', "{"):
        template = template.partition(mark)[0]
    return template.strip()[:_FOREIGN_CHARACTERS] or "(a text that may carry data)"
