from __future__ import annotations

import pytest

from codespace import duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.5, "0.5 seconds"), (1, "1 second"), (60.0, "60 seconds"), (119, "119 seconds"), (120, "2 minutes")],
)
def test_what_is_less_than_two_minutes_is_told_in_seconds(seconds: float, said: str) -> None:
    assert duration.words(seconds) == said
