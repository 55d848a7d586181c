from __future__ import annotations

import fcntl
import io
import os
import struct
import termios

from orchestrator.render.sink import Redraw


def test_on_a_terminal_it_stays_in_its_place() -> None:
    far, near = os.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 4, 20, 0, 0))
    with os.fdopen(near, "w") as stream:
        table = Redraw(stream)
        table.show(["a", "some words that do not fit", "c", "d"])
        table.show(["some words that do not fit", "b\x1b[2J"])
        written = ""
        while not written.endswith("b\r\n"):  # it may come in several pieces
            written += os.read(far, 4096).decode()
    os.close(far)
    assert written.replace("\r\n", "\n") == (
        "\x1b[Ja\nsome words that…\nc\n\x1b[3A\x1b[Jsome words that do\n  not fit\nb\n"
    )


def test_elsewhere_it_is_printed_when_it_has_changed() -> None:
    stream = io.StringIO()
    table = Redraw(stream)
    for lines in (["a"], ["a"], ["b"]):
        table.show(lines)
    assert stream.getvalue() == "a\n\nb\n"
