"""A program that replaces our agent: it sends the same hello, then whatever a test specifies."""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def head(*options: str) -> str:
    """Return a program's first lines, valid in sh and Python: the path of this Python may have spaces."""
    words = shlex.join([sys.executable, *options])
    return f"#!/bin/sh\n'''exec' {words} \"$0\" \"$@\"\n' '''\n"


_PROGRAM = """import json, os, struct, sys, time
sys.path.insert(0, {root!r})
from orchestrator.node.serve import frames

stdin, out = sys.stdin.buffer, sys.stdout.buffer
out.write(frames.READY)
out.flush()
stdin.read(int(stdin.readline()))
sizes = stdin.readline().split()
stdin.read(int(sizes[0]) + int(sizes[1]))
HELLO = {{
    "python": "3.11.2", "user": "train", "boot_id": "b", "netns": "n",
    "time_ns": time.time_ns(), "state": "/var/tmp/o", "state_error": None,
}}

def raw(data):
    out.write(data)
    out.flush()

def say(header, payload=b""):
    raw(frames.encode(header, payload))

def text(head, payload=b""):
    raw(struct.pack(">II", len(head), len(payload)) + head + payload)

def greet(**more):
    raw(frames.MARKER)
    say({{"hello": {{**HELLO, **more}}}})

os.set_blocking(0, False)
ahead = stdin.peek()  # requests that came along
os.set_blocking(0, True)

def listen():
    decoder = frames.Decoder()
    yield from (header for header, _ in decoder.feed(ahead))
    while data := os.read(0, 1 << 20):
        for header, _ in decoder.feed(data):
            yield header

asked = listen()

def good(header, result=None):
    say({{"id": header["id"], "ok": True, "result": {{}} if result is None else result}})

def await_question(op):
    for header in asked:
        if header["op"] == op:
            return header
        good(header)

{lie}
time.sleep(60)
"""


def liar(folder: Path, lie: str) -> str:
    """Create a program that lies like this, for use as `agent_python`; return its path."""
    path = folder / "liar"
    path.write_text(head() + _PROGRAM.format(root=str(ROOT), lie=lie))
    path.chmod(0o755)
    return str(path)
