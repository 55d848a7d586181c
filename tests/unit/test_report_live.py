"""The page of `report --follow`: who is answered, and with what, and how it ends."""

import base64
import hashlib
import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator import events as ev
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.report.live import PageServer, script
from orchestrator.report.page import page
from tests.unit.test_report import ID, STARTED, ended, folder, outline


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(partial(page, folder(*STARTED), live=script()), 0) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    url: str, method: str = "GET", path: str | None = None, **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=60)
    connection.putrequest(method, where.path if path is None else path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_a_browser_gets_the_page_of_now_and_nothing_runs_but_its_own_script(server: PageServer) -> None:
    status, text, headers = ask(server.url)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    (own,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', text)
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert (
        policy
        == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; connect-src 'self'"
    )
    outline(text.replace(own, "").replace("<script></script>", ""))
    assert ask(server.url, If_None_Match=headers["ETag"])[:2] == (304, "")
    assert ask(server.url, "HEAD")[:2] == (200, "")
    folder(ended(ev.Outcome.SUCCEEDED))  # adds to the events
    server._due = 0.0
    assert "succeeded after 61 s" in ask(server.url, If_None_Match=headers["ETag"])[1]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((one, 200) for one in ("127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:9")),
        *((one, 403) for one in ("", "evil.example", "127.0.0.1.evil.example", "localhost:x", "a@127.0.0.1")),
    ],
)
def test_only_names_of_this_machine_are_answered(server: PageServer, host: str, status: int) -> None:
    """A page of elsewhere whose name was made to lead here still has its own name in Host."""
    assert ask(server.url, Host=host)[0] == status


@pytest.mark.parametrize("path", ["/", "/report.html", "/../../etc/passwd"])
def test_without_the_address_there_is_nothing(server: PageServer, path: str) -> None:
    status, text, _ = ask(server.url, path=path)
    assert (status, "succeeded" in text) == (404, False)
    assert ask(server.url, "POST")[0] == 501


def test_a_run_that_is_removed_meanwhile_is_told(server: PageServer) -> None:
    folder().plan.unlink()
    assert ask(server.url)[0] == 503


def test_it_listens_on_loopback_alone_and_ctrl_c_ends_it_well() -> None:
    run, argv = folder(*STARTED), [sys.executable, "-m", "orchestrator", "report", "--follow", ID]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=run.path, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert ask(url)[0] == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder(*STARTED)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (f"--follow -o {tmp_path}/a.html", f"--port {port}", f"--follow --port {port}"):
            assert main(["report", *words.split()]) == ExitStatus.USAGE
    assert f"cannot listen on port {port}" in capsys.readouterr().err
