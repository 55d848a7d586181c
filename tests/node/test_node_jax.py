"""What our hook tells a task's JAX, against a stand-in: tests/frameworks has the real one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import Node

CLUSTERS = """
class ClusterEnv:
    _cluster_types = []
    def __init_subclass__(cls):
        cls._cluster_types.append(cls)
class Slurm(ClusterEnv):
    is_env_present = classmethod(lambda cls: True)
"""
PROGRAM = """
import os, jax._src.clusters as clusters
first, *others = clusters.ClusterEnv._cluster_types
print(first.name, first.is_env_present(), len(others))
print(first.get_coordinator_address(timeout_secs=1), first.get_process_count(), first.get_process_id())
print("grpc_proxy" in os.environ)
"""
PLACE = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}


def said(node: Node, folder: Path, clusters: str, program: str, **spec: Any) -> list[bytes]:
    package = folder / "jax" / "_src"
    package.mkdir(parents=True)
    for path in (folder / "jax" / "__init__.py", package / "__init__.py"):
        path.touch()
    (package / "clusters.py").write_text(clusters)
    (folder / "train.py").write_text(program)
    node.start(sys.executable, str(folder / "train.py"), **spec)
    node.final()
    return node.log().splitlines()


@pytest.mark.parametrize("proxy", [{}, {"HTTPS_PROXY": "http://cache:3128"}], ids=["", "proxy"])
def test_jax_finds_where_it_stands(node: Node, tmp_path: Path, proxy: dict[str, str]) -> None:
    lines = said(node, tmp_path, CLUSTERS, PROGRAM, env={**PLACE, **proxy})
    assert lines == [b"orchestrate True 1", b"a:1 4 3", str(bool(proxy)).encode()]


def test_another_jax_is_left_alone(node: Node, tmp_path: Path) -> None:
    assert said(node, tmp_path, "x = 1\n", "import jax._src.clusters as c; print(c.x)", env=PLACE) == [b"1"]
