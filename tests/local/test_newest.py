"""The newest run, as nodes tell of it to a machine that has none: the newest that started tasks."""

import re
import socket
from pathlib import Path

from tests.local.here import inventory
from tests.verbs import call


def test_a_refused_launch_is_not_the_newest_run(tmp_path: Path) -> None:
    with inventory(tmp_path, "gpu-01") as hosts:
        (tmp_path / "hosts.toml").write_text(hosts)
        launch = ("launch", "--no-validate", "--name")
        command = ("--", "sh", "-c", "echo trained")
        done = call((*launch, "trained", "--skip-preflight", *command), tmp_path, tmp_path / "state")
        assert done.status == 0, done.err
        port = int(re.findall(r"task_port = (\d+)", hosts)[0])
        with socket.create_server(("", port)):
            refused = call((*launch, "refused", *command), tmp_path, tmp_path / "state")
        assert refused.status == 3, refused.err
        told = call(("tail",), tmp_path, tmp_path / "elsewhere")
        assert told.status == 0, told.err
        assert "trained" in told.out
