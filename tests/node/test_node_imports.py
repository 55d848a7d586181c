"""TensorFlow's modules are kept from Python's garbage collector; what a program makes is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import Node

PACKAGE = """
import gc, os
during = gc.isenabled()
kept = [[] for _ in range(1000)]
if os.path.exists(__file__ + ".broken"):
    raise ImportError("a broken library")
"""
PROGRAM = """
import gc, importlib, json, pkgutil, sys, weakref
data = len(pkgutil.get_data("tensorflow", "data.txt") or "") if sys.argv[1] == "data" else 0
if sys.argv[1] == "off":
    gc.disable()
before = gc.get_freeze_count()
try:
    import tensorflow
    during, loader = tensorflow.during, type(tensorflow.__spec__.loader).__name__
except ImportError:
    during = loader = None
frozen = gc.get_freeze_count() - before

class Own: pass

own = Own()
own.itself = own
gone = weakref.ref(own)
if sys.argv[1] == "again":
    importlib.reload(tensorflow)
again = gc.get_freeze_count() - before - frozen
del own
gc.collect()
print(json.dumps({"during": during, "frozen": frozen, "again": again, "loader": loader,
                  "enabled": gc.isenabled(), "gone": gone() is None, "data": data}))
"""


def facts(node: Node, folder: Path, how: str, *, broken: bool = False, stacks: bool = True) -> dict[str, Any]:
    package = folder / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    (package / "data.txt").write_text("seven b")
    if broken:
        (package / "__init__.py.broken").touch()
    (folder / "train.py").write_text(PROGRAM)
    node.start(sys.executable, str(folder / "train.py"), how, stacks=stacks)
    assert node.final()["exit_code"] == 0, node.log()
    found: dict[str, Any] = json.loads(node.log())
    return found


@pytest.mark.parametrize(
    ("how", "enabled"),
    [pytest.param("on", True, id="as Python starts"), pytest.param("off", False, id="switched off before")],
)
def test_the_collector_rests_during_the_import_and_does_not_look_at_it_again(
    node: Node, tmp_path: Path, how: str, *, enabled: bool
) -> None:
    found = facts(node, tmp_path, how)
    assert found["during"] is False
    assert found["frozen"] > 1000
    assert found["enabled"] is enabled
    assert (found["gone"], found["loader"]) == (True, "SourceFileLoader")


def test_what_the_program_made_before_a_second_import_is_collected(node: Node, tmp_path: Path) -> None:
    found = facts(node, tmp_path, "again")
    assert found["again"] <= 0  # what the first one made is gone
    assert (found["gone"], found["enabled"]) == (True, True)


def test_an_import_that_fails_leaves_the_collector_as_it_was(node: Node, tmp_path: Path) -> None:
    found = facts(node, tmp_path, "on", broken=True)
    assert (found["frozen"], found["enabled"], found["gone"]) == (0, True, True)


def test_data_of_a_package_can_be_had_before_it_is_imported(node: Node, tmp_path: Path) -> None:
    assert facts(node, tmp_path, "data")["data"] == 7


def test_it_is_off_with_the_rest(node: Node, tmp_path: Path) -> None:
    found = facts(node, tmp_path, "on", stacks=False)
    assert (found["during"], found["frozen"]) == (True, 0)
