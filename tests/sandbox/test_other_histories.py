"""Repositories of others than git: what the built-in list of protected paths keeps of them."""

from __future__ import annotations

import pytest

from codespace.runner.protected import PROTECTED

from .cage import Cage

ATTACK = """
printf '[hooks]\\npre-status = touch ran\\n' >.hg/hgrc && echo hook
echo /elsewhere/.hg >.hg/sharedpath && echo led elsewhere
mv .hg moved && echo moved
cat moved/00changelog.i .hg/00changelog.i
"""


def test_a_repository_of_mercurial_can_be_read_and_gets_no_hooks_from_a_command(cage: Cage) -> None:
    """The next `hg status` on the host runs what its hgrc says, or that of the repository which it is led to."""
    cage.put(".hg/requires", "revlogv1\n")
    cage.put(".hg/00changelog.i", "history\n")
    assert cage.run(["/bin/sh", "-c", ATTACK], protected=PROTECTED).out == "history\n"
    assert cage.sh(ATTACK).out == "hook\nled elsewhere\nmoved\nhistory\n"  # the control


@pytest.mark.parametrize("place", [".sl", ".jj", "sub/.hg", "sub/deep/.sl", "sub/.jj", "sub/.HG"])
def test_a_repository_with_programs_in_its_configuration_is_protected_wherever_it_lies(cage: Cage, place: str) -> None:
    """Sapling reads hooks from `.sl/config`, and Jujutsu tools and a pager from what lies in `.jj`."""
    cage.put(f"{place}/store", "history\n")
    attack = f"echo x >{place}/config && echo written; mv {place} moved && echo moved; cat {place}/store"
    assert cage.run(["/bin/sh", "-c", attack], protected=PROTECTED).out == "history\n"
    assert cage.sh(f"echo x >{place}/config && echo written").out == "written\n"  # the control
    made = cage.run(["/bin/sh", "-c", "mkdir -p new/.hg .sl new/.jjx"], protected=PROTECTED).planted
    assert set(made) == {"new/.hg", ".sl"} - {place}
