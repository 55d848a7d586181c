"""Fetching a set of tensorflow-datasets: refused soon where there is no way, never silent or endless."""

from __future__ import annotations

import importlib
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from worker_entry.watch import OPEN, look_at_all

Tell: TypeAlias = Callable[[str, int, int], None]  # what it does, and bytes of how many (0: not known)

CONNECT, SILENCE = 10.0, 60.0  # seconds: until a server answers, and without a byte from it
RETRIES = 2  # of a file; tensorflow-datasets would take minutes to give up
EVERY = 5.0  # seconds between two words of progress


def unreachable(urls: Iterable[str]) -> str:
    """Why none of the servers of these addresses can be reached, "" when one can; takes 3 s at most.

    Where a proxy is set, it is the proxy that is asked.
    """
    ways = {server: way for url in urls for server, way in [_way(url)]}
    found = look_at_all({way: way for way in set(ways.values())})
    if not ways or OPEN in found.values():
        return ""
    server, way = next(iter(ways.items()))
    through = "" if way == server else f" through the proxy {way}"
    return f"{server}{through} cannot be reached: {found[way].partition(':')[0]}"


def _way(url: str) -> tuple[str, str]:
    """The server of an address, and whom to ask for it, both as host:port."""
    parts = urllib.parse.urlsplit(url)
    server = _address(parts)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return server, server
    return server, _address(urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}"))


def _address(parts: urllib.parse.SplitResult) -> str:
    return f"{parts.hostname}:{parts.port or {'http': 80, 'ftp': 21}.get(parts.scheme, 443)}"


@contextmanager
def bounded() -> Iterator[None]:
    """Within, no download waits longer than CONNECT, SILENCE and RETRIES allow; for this process."""
    module: Any = importlib.import_module("tensorflow_datasets.core.download.downloader")
    adapter = module.requests.adapters.HTTPAdapter
    retries, send = module.MAX_RETRIES, adapter.send

    def impatient(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        options["timeout"] = options.get("timeout") or (CONNECT, SILENCE)
        return send(self, request, *args, **options)

    module.MAX_RETRIES = RETRIES
    adapter.send = impatient
    try:
        yield
    finally:
        module.MAX_RETRIES, adapter.send = retries, send


@contextmanager
def progress(folder: Path, total: int, tell: Tell) -> Iterator[None]:
    """Within, tell every few seconds how many bytes have arrived in a folder, of `total`."""
    before, over = _bytes_below(folder), threading.Event()

    def look() -> None:
        while not over.wait(EVERY):
            arrived = max(0, _bytes_below(folder) - before)
            tell("downloads" if arrived < total else "prepares", min(arrived, total), total)

    tell("downloads", 0, total)
    teller = threading.Thread(target=look, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _bytes_below(folder: Path) -> int:
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(Path(path, name)).st_size
            except FileNotFoundError:  # it was moved to its own name meanwhile
                continue
    return found
