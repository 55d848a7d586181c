"""`orchestrate tensorboard`, before it starts anything."""

from __future__ import annotations

import socket

import pytest

from orchestrator.cli import tensorboard
from orchestrator.cli.args.parser import parse
from orchestrator.errors import UsageError


def test_a_port_that_is_taken_is_said_before_anything_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of this machine cannot be had") as caught:
            tensorboard.main(parse(["tensorboard", "no-such-run", "--port", str(port)]))
    assert caught.value.why == "Address already in use"
