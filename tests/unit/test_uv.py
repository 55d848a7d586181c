"""The uv of this installation is found from many threads at once: a host each."""

from __future__ import annotations

import subprocess
import sys

# What sysconfig of Python 3.11 does when two threads ask it first, made sure to happen: the one that
# comes second would see variables that the first has not filled in yet.
_SLOW = """
import sysconfig, threading
from orchestrator.envs import uv

begun, asked = threading.Event(), threading.Event()
fill = getattr(sysconfig, "_init_posix", None)

def slowly(found):
    begun.set()
    asked.wait(1)
    fill(found)

if fill is not None:
    sysconfig._init_posix = slowly
found = []
def find():
    found.append(uv.binary())
first = threading.Thread(target=find)
first.start()
begun.wait(1)
second = threading.Thread(target=find)
second.start()
second.join(0.2)
asked.set()
first.join()
second.join()
assert len(found) == 2, found
"""


def test_two_threads_that_look_for_it_first_both_find_it() -> None:
    done = subprocess.run([sys.executable, "-c", _SLOW], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
