"""A program that replaces a host's Python: it runs the real agent and changes its messages.

The changes are Python code in a file next to the program, which a test writes before it calls a verb and
removes afterwards: without the file the host is honest.
"""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Valid in sh and Python: the path of this Python may have spaces.
_HEAD = f"#!/bin/sh\n'''exec' {shlex.join([sys.executable, '-ISu'])} \"$0\" \"$@\"\n' '''\n"

_PROGRAM = '''import os, sys
PYTHON, LIE, CANARY = {python!r}, {lie!r}, {canary!r}
try:
    with open(LIE) as file:
        source = file.read()
except OSError:
    os.execv(PYTHON, [PYTHON, *sys.argv[1:]])
import base64, json, struct, subprocess, threading, time, zlib
sys.path.insert(0, {root!r})
from orchestrator.node.serve import frames

code = compile(source, LIE, "exec")
agent = subprocess.Popen([PYTHON, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
asked = {{}}  # id -> request
kept = {{}}  # what a lie wants to know again


def write(data):
    while data:
        data = data[os.write(1, data):]


def say(header, payload=b""):
    write(frames.encode(header, payload))


def text(head, payload=b""):
    """A frame with a header that need not be JSON."""
    write(struct.pack(">II", len(head), len(payload)) + head + payload)


def unpacked(sealed):
    """A plan as a dict, without its seal."""
    return json.loads(zlib.decompress(base64.b64decode(sealed.partition(" ")[0])))


def packed(plan):
    """A plan without a seal, as a node keeps it: from a dict, or from what shall be its JSON."""
    text = plan if isinstance(plan, str) else json.dumps(plan)
    return base64.b64encode(zlib.compress(text.encode())).decode()


def leave():
    """At once, and the agent with us, whatever either thread waits for: it holds leases until then."""
    os._exit(0)


def feed(data):
    while data:
        data = data[agent.stdin.write(data):]


def forward():
    try:
        pass_on()
    finally:
        leave()


def pass_on():
    """From the controller to the agent as it comes; read on the way."""
    source = sys.stdin.buffer
    begin = source.readline()
    begin += source.read(int(begin))
    sizes = source.readline()
    begin += sizes + source.read(sum(map(int, sizes.split()[:2])))
    os.set_blocking(0, False)
    data = source.peek()  # requests that came along
    os.set_blocking(0, True)
    feed(begin)
    decoder = frames.Decoder()
    while data := data or os.read(0, 1 << 20):
        for header, _ in decoder.feed(data):
            asked[header["id"]] = header
        feed(data)
        data = b""


def changed(header, payload):
    """Send a frame of the agent, or what the lie has in its place."""
    ask = asked.get(header.get("id"), {{}})
    if "id" in header:
        op = ask["op"]
    elif "stream" in header:
        op = header["kind"]
    else:
        op = "hello" if "hello" in header else "out" if "exec" in header else "beat"
    space = {{**globals(), "op": op, "ask": ask, "header": header, "payload": payload}}
    space["result"] = header.get("result")
    exec(code, space)
    header, payload = space["header"], space["payload"]
    if header is None:
        return
    if header.get("ok") is True and "result" in header:
        header["result"] = space["result"]
    say(header, payload)


threading.Thread(target=forward, daemon=True).start()
def listen():
    write(frames.READY)
    noise = b""
    while frames.MARKER not in noise:
        data = os.read(agent.stdout.fileno(), 1 << 16)
        if not data:
            return
        noise += data
    first, marker, rest = noise.partition(frames.MARKER)
    write(first + marker)
    decoder = frames.Decoder()
    while True:
        for header, payload in decoder.feed(rest):
            changed(header, payload)
        rest = os.read(agent.stdout.fileno(), 1 << 20)
        if not rest:
            return


try:
    listen()
except BaseException as error:
    print(repr(error), file=sys.stderr, flush=True)
finally:
    leave()
'''


class Middle:
    """The program of one host, and its lies."""

    def __init__(self, path: Path, canary: Path) -> None:
        self.path = path
        self._lie = path.with_name(f"{path.name}.lie")
        path.write_text(
            _HEAD
            + _PROGRAM.format(python=sys.executable, lie=str(self._lie), root=str(ROOT), canary=str(canary))
        )
        path.chmod(0o755)

    def lie(self, code: str) -> None:
        """Set the lie for later starts of the program; `code` runs for each frame of the agent.

        It may change `header`, `result`, and `payload` (None for `header`: nothing is sent), and `say` more.
        """
        self._lie.write_text(code)

    def be_honest(self) -> None:
        self._lie.unlink(missing_ok=True)
