"""How a sandbox's first process gets its descriptors."""

from __future__ import annotations

import subprocess
import sys

FEW = """
import os, resource, sys
from codespace.sandbox import foreground
while os.dup(0) < 40:
    pass
reading, writing = os.pipe()
os.dup2(reading, 63)
os.close(reading)
os.dup2(0, 70, inheritable=False)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
listing = ["/bin/sh", "-c", "cd /proc/self/fd && echo * >&3"]
pid = foreground.start(listing, {"PATH": "/usr/bin:/bin"}, {0: 2, 1: 0, 2: 1, 3: writing})
os.waitpid(pid, 0)
os.close(writing)
sys.stdout.write(os.read(63, 4096).decode())
"""


def test_a_program_gets_its_descriptors_and_no_other_also_below_a_low_limit() -> None:
    done = subprocess.run([sys.executable, "-c", FEW], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split()[:4], done.returncode) == (["0", "1", "2", "3"], 0), done
    assert not {"40", "63", "70"} & set(done.stdout.split())
