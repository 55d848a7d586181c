"""A data set that cannot be fetched: that is said when it is known, not minutes later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.node.harness import Node
from tests.training import training_python

FETCH = """
import sys, time
import requests
from urllib3.util.retry import Retry

session = requests.Session()
session.mount("http://", requests.adapters.HTTPAdapter(max_retries=Retry(total=2, backoff_factor=0.01)))
for _ in range(2):
    try:
        session.get(sys.argv[1])
    except requests.exceptions.ConnectionError as error:
        print("gave up", flush=True)
"""


@pytest.mark.parametrize("stacks", [True, False])
def test_a_server_out_of_reach_is_said_once_and_at_once(node: Node, tmp_path: Path, *, stacks: bool) -> None:
    """By urllib3, as tensorflow-datasets uses it: with more retries, which take minutes."""
    (tmp_path / "fetch.py").write_text(FETCH)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and not listening: it refuses
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/mnist.npz"
        node.start(training_python(), str(tmp_path / "fetch.py"), url, stacks=stacks)
        node.final()
    lines = [line for line in node.log().decode().split("\n") if line]
    said = [line for line in lines if line.startswith("orchestrate: a server is out of reach: ")]
    assert len(said) == (1 if stacks else 0)
    assert lines.count("gave up") == 2
    if stacks:
        assert lines[0] == said[0]
        assert "Connection refused; urllib3 tries again, at most 1 times" in said[0]
        assert "docs/data.md" in said[0]
