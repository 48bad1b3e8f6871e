"""The operator's configuration: read once at start, checked strictly, then never read again."""

from __future__ import annotations

from codespace.settings.fault import SettingsError
from codespace.settings.load import check, load, notices
from codespace.settings.model import MEMORY_DATABASE, Settings

__all__ = ["MEMORY_DATABASE", "Settings", "SettingsError", "check", "load", "notices"]
