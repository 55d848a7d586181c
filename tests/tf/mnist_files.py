"""Smaller versions of MNIST's four files with random numbers, and a server for them."""

import functools
import gzip
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TRAIN, TEST = 600, 100


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        images = bytes(16) + os.urandom(28 * 28 * count)
        labels = bytes(8) + bytes(n % 10 for n in range(count))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


@dataclass(frozen=True)
class Served:
    """A local server for the files, which serves none until it is released."""

    url: str
    fetched: list[str]  # so far
    give: threading.Event


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    fetched: list[str] = []
    give = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(self.path)
            give.wait()
            super().do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{server.server_address[1]}/", fetched, give)
        finally:
            give.set()
            server.shutdown()
            thread.join()
