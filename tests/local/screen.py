"""A real terminal (tmux) of any size with a shell, and what a user sees in it."""

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

LIMIT = 40.0  # seconds


def need_tmux() -> None:
    """Skip with the reason if tmux is missing; in CI that is a failure."""
    if shutil.which("tmux"):
        return
    if os.environ.get("CI"):
        pytest.fail("no tmux; scripts/setup tests installs it")
    pytest.skip("no tmux; scripts/setup tests installs it")


def is_on(lines: list[str], text: str) -> bool:
    """Return whether a text is on the screen, even if broken over two lines."""
    return text in " ".join(" ".join(lines).split())


class Screen:
    def __init__(self, folder: Path, environment: Mapping[str, str], columns: int, rows: int) -> None:
        self._name = f"orchestrate-{uuid.uuid4().hex[:12]}"
        self._environment = {**environment, "HISTFILE": "/dev/null"}
        size = ("-x", str(columns), "-y", str(rows))
        shell = "env PS1='$ ' bash --norc --noprofile"
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), shell)

    def _tmux(self, *words: str) -> str:
        argv = ["tmux", "-L", self._name, *words]
        done = subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=True)
        return done.stdout

    def close(self) -> None:
        socket = Path(self._tmux("display-message", "-p", "#{socket_path}").strip())
        self._tmux("kill-server")
        socket.unlink(missing_ok=True)

    def lines(self, *, colours: bool = False) -> list[str]:
        """Return the screen without trailing empty lines."""
        text = self._tmux("capture-pane", "-p", *(["-e"] if colours else []))
        return text.rstrip("\n").split("\n")

    def wait(self, seen: Callable[[list[str]], object]) -> list[str]:
        """Wait until the screen meets a condition, and return it."""
        deadline = time.monotonic() + LIMIT
        while not seen(lines := self.lines()):
            assert time.monotonic() < deadline, "\n".join(lines)
            time.sleep(0.05)
        return lines

    def shows(self, text: str) -> list[str]:
        """Wait until a text is on the screen, even if broken over two lines, and return the screen."""
        return self.wait(lambda lines: is_on(lines, text))

    def run(self, command: str) -> None:
        """Type a command on an empty screen, so that no earlier output can be taken for its own."""
        self._tmux("send-keys", "-R")
        self._tmux("send-keys", "-l", f"clear; {command}")
        self._tmux("send-keys", "Enter")

    def press(self, *keys: str) -> None:
        """Press keys one at a time, as a user does."""
        for key in keys:
            self._tmux("send-keys", key)
            time.sleep(0.05)  # without this pause several keys could be taken for one multibyte key

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def children(self) -> list[int]:
        """Return the processes that run in the shell."""
        pid = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def is_sane(self) -> bool:
        """Return whether the shell shows its prompt, and the terminal echoes and reads lines as before."""
        self.wait(lambda lines: lines[-1].startswith("$"))
        self.run("stty -a")
        lines = self.wait(lambda lines: any("isig" in line for line in lines) and lines[-1].startswith("$"))
        words = " ".join(lines).split()
        return "icanon" in words and "echo" in words and "isig" in words
