"""Remembered letters find the name that was meant, fast."""

from __future__ import annotations

import time

from codespace.runner.search import fuzzy


def test_the_better_answer_comes_first() -> None:
    paths = ["src/other/config.py", "src/con/fig", "config", "a/my_config.py", "c/o/n/f/i/g.txt", "unrelated"]
    found, total = fuzzy.best("config", paths, 10)
    assert found == ["config", "src/other/config.py", "a/my_config.py", "src/con/fig", "c/o/n/f/i/g.txt"]
    assert total == 5


def test_letters_may_be_spread_and_case_and_blanks_do_not_count() -> None:
    assert fuzzy.best("U Ctl", ["app/UserController.java", "app/view.java"], 5) == (["app/UserController.java"], 1)


def test_a_letter_whose_small_form_is_two_moves_no_other() -> None:
    assert fuzzy.best("a", ["İİİİxa", "İİ/İ-a"], 5) == (["İİ/İ-a", "İİİİxa"], 2)
    assert fuzzy.best("İstan", ["docs/İSTANBUL.md"], 5) == (["docs/İSTANBUL.md"], 1)
    assert fuzzy.best("istan", ["docs/İstanbul.md"], 5) == (["docs/İstanbul.md"], 1)


def test_the_limit_keeps_the_best_and_the_total_counts_all() -> None:
    found, total = fuzzy.best("f", [f"dir/f{number:04}" for number in range(1000)], 3)
    assert found == ["dir/f0000", "dir/f0001", "dir/f0002"]
    assert total == 1000


def test_five_thousand_paths_take_well_under_a_tenth_of_a_second() -> None:
    paths = [
        f"package_{number % 50}/module_{number % 7}/file_number_{number}_{'abcdefgh' * 4}.py" for number in range(5000)
    ]

    def seconds() -> float:
        began = time.process_time()
        fuzzy.best("pmfilenum41py", paths, 100)
        fuzzy.best("a" * 60, paths, 100)
        return time.process_time() - began

    assert any(seconds() < 0.2 for _ in range(5)), "others on the machine make even the processor slower, not each time"
