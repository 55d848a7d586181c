"""A page that is served during its run, to browsers on this machine that have its address."""

import base64
import hashlib
import re
import secrets
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestrateError, unless_refused
from orchestrator.report.page import Renewal

_SHARE = 10  # a page is drawn again after this many times the duration of drawing it,
_YOUNGEST = 1.0  # but not within so many seconds
_PATIENCE = 10.0  # seconds for a browser to write its request
# Under any other name, a foreign page whose name leads to this machine could read ours (DNS rebinding).
_OURS = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def script() -> Renewal:
    """Read the script that renews the page; the page's policy allows no other script."""
    text = Path(__file__).with_name("live.js").read_text()
    return Renewal(text, "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


class PageServer(ThreadingHTTPServer):
    """Serves one page on loopback, under a secret address."""

    daemon_threads = True

    def __init__(self, draw: Callable[[float], str], port: int) -> None:
        self._draw, self._lock, self._due = draw, threading.Lock(), 0.0
        self._page = b""
        self.path = f"/{secrets.token_urlsafe(16)}/"
        hint = "name another one, or omit --port to use a free one"
        with unless_refused(f"cannot listen on port {port}", hint):
            super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.path}"

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # http.server would also look up a name

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the browser has disconnected
            super().handle_error(request, client_address)

    def page(self) -> bytes:
        """Return the current page, or a recent one; raise OrchestrateError if the run cannot be read."""
        with self._lock:
            began = time.monotonic()
            if began >= self._due:
                self._page = self._draw(time.time()).encode("utf-8", "backslashreplace")
                self._due = time.monotonic() + max(_YOUNGEST, _SHARE * (time.monotonic() - began))
            return self._page


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _PATIENCE
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _OURS.fullmatch(hosts[0]):
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for browsers of this machine\n")
        elif not secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            self._answer(HTTPStatus.NOT_FOUND, b"the address is the one that `orchestrate report` printed\n")
        else:
            try:
                page = self.server.page()
            except OrchestrateError as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, error.in_one_line.encode("utf-8", "replace"))
                return
            tag = f'"{hashlib.sha256(page).hexdigest()[:32]}"'
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, b"", tag)
            else:
                self._answer(HTTPStatus.OK, page, tag, "text/html")

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def _answer(self, status: HTTPStatus, body: bytes, tag: str = "", kind: str = "text/plain") -> None:
        self.send_response(status)
        headers = {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**headers, **({"ETag": tag} if tag else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
