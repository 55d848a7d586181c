"""Hosts with `container`: one more step in opening a link, from the machine into the container of a run.

The first half of our agent (`node/serve/container.py`) starts the container, unless it runs already, and
becomes the engine's `exec` of the command line that was to be opened.
"""

import json
import re
import threading
from collections.abc import Sequence
from typing import Any, cast

from orchestrator import wire
from orchestrator.clock import SYSTEM
from orchestrator.errors import HostError, Trouble
from orchestrator.fleet import problems
from orchestrator.model import DEFAULT_PYTHON, Host
from orchestrator.node.serve import bootstrap, frames
from orchestrator.text import cut, plain
from orchestrator.timings import DEFAULT
from orchestrator.transport import Channel, Link
from orchestrator.value import Value

_READ = 65_536
_MOST = 256 << 10  # bytes of login noise and of a report
_SECONDS = 960.0  # for a step: rootless podman copies a large image when it is used first
_OVER = (
    r"is not running|no such container|only create exec sessions|container state improper|no container with"
)


class Inside(Value):
    """The run whose containers are entered; `start`: they are started where they do not run."""

    run: str
    start: bool = True


class Entered(wire.Reply):
    """The result of a step on a machine: what it found, or why it failed."""

    engine: wire.Words = ""
    image: wire.Words = ""  # its id, and its processor as the engine calls it
    machine: wire.Words = ""
    ends: wire.Words = ""  # not "": the container ends with the user's last login
    trouble: wire.Words = ""
    why: wire.Lines = ""


class ContainerLink:
    """A `Link` into the container of a run on a host."""

    def __init__(self, link: Link, host: Host, inside: Inside) -> None:
        self._link = link
        self._host = host
        self._inside = inside
        self._name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"orchestrate-{inside.run}-{host.name}")
        self._remark = ""

    @property
    def remark(self) -> str:
        return "; ".join(filter(None, (self._link.remark, self._remark)))

    def open(self, argv: Sequence[str]) -> Channel:
        python = argv[0] == self._host.agent_python
        inside = [DEFAULT_PYTHON if python else argv[0], *argv[1:]]
        run, start = self._inside.run, self._inside.start
        more = {"name": self._name, "run": run, "start": start, "inside": inside, "outside": [*argv]}
        channel, report = step(self._link, self._host, "enter", **more)
        if report.ends:
            self._remark = (
                "rootless podman ends its containers with the last login of the user there, unless"
                " `loginctl enable-linger` was run"
            )
        return channel

    def explain(self, status: int | None, stderr: bytes) -> HostError | None:
        """Return the error of a container that has just ended, or cannot run our agent."""
        text, name = stderr.decode(errors="replace"), self._host.name
        if re.search(_OVER, text, re.IGNORECASE):
            return HostError(
                name, "ended its container at that moment", kind=Trouble.HUNG_UP, why=_last(text)
            )
        if "the agent needs Python" in text:
            return _no_python(self._host, _last(text))
        return self._link.explain(status, stderr)

    def leave(self) -> None:
        step(self._link, self._host, "leave", name=self._name)[0].close()

    def close(self) -> None:
        self._link.close()


class _Rest:
    """A channel whose first bytes were already read."""

    def __init__(self, channel: Channel, data: bytes) -> None:
        self._channel = channel
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def recv(self, limit: int) -> bytes:
        data, self._data = self._data[:limit], self._data[limit:]
        return data or self._channel.recv(limit)


def step(link: Link, host: Host, what: str, **more: Any) -> tuple[Channel, Entered]:
    """Run a step of a host's engine; return its report, and the channel for what follows. Raise HostError."""
    channel = link.open(bootstrap.argv(host.agent_python))
    spec = {
        "step": what,
        "image": host.container,
        "args": host.container_args,
        "engine": host.container_engine or "",
        "workdir": host.workdir,
        **more,
    }
    ready, over, data = threading.Event(), threading.Event(), b""
    SYSTEM.start(f"container of {host.name}", _limit, channel, ready, over)
    try:
        while True:
            noise, marker, rest = data.partition(frames.MARKER if ready.is_set() else frames.READY)
            if marker and not ready.is_set():
                ready.set()
                channel.send(bootstrap.payload({"state": host.state, "container": spec}))
                data = rest
            elif marker and b"\n" in rest:
                break
            received = channel.recv(_READ)
            if not received:
                status, stderr = channel.wait(2.0), channel.stderr_tail()
                text, begun = problems.noise(noise, stderr), ready.is_set()
                raise link.explain(status, stderr) or problems.no_agent(host, text, status, begun=begun)
            data = (data + received)[-_MOST:]
        line, _, rest = rest.partition(b"\n")
        try:
            entered = wire.read(json.loads(line), Entered, "its report on the container")
        except (ValueError, RecursionError) as error:
            raise problems.foreign(host, str(error)) from None
        if entered.trouble:
            raise trouble(host, entered)
        return cast("Channel", _Rest(channel, rest)), entered
    except BaseException:
        channel.close()
        raise
    finally:
        over.set()
        ready.set()


def _limit(channel: Channel, ready: threading.Event, over: threading.Event) -> None:
    """Close the channel of a login or of a step that does not end."""
    if not SYSTEM.flagged(ready, DEFAULT.hello) or not SYSTEM.flagged(over, _SECONDS):
        channel.close()


def _last(text: str) -> str:
    return cut(plain(next((line for line in reversed(text.splitlines()) if line.strip()), "")), 300)


def _no_python(host: Host, why: str) -> HostError:
    what = f"cannot use the image {host.container}: it has no {DEFAULT_PYTHON} of 3.8 or newer"
    hint = "use an image with one, or add it to this one: `RUN apt-get update && apt-get install -y python3`"
    return HostError(host.name, what, kind=Trouble.NO_PYTHON, why=why, hint=hint)


_GPUS = {
    "docker": (
        "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker` there, after"
        " `sudo apt install nvidia-container-toolkit`"
    ),
    "podman": (
        "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` there, after"
        " `sudo apt install nvidia-container-toolkit`"
    ),
}
# The output of an engine (docker 20 to 28, podman 3 to 5), the error, and its fix.
_TROUBLES = (
    (
        r"permission denied.*docker.*sock|docker.*sock.*permission denied",
        "does not let this user use docker",
        "`sudo usermod -aG docker {user}` there, and log in again; or install podman, which needs no rights",
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running",
        "has docker, but its daemon does not run",
        "`sudo systemctl start docker` there",
    ),
    (
        r"could not select device driver|CDI device|nvidia-container-cli|runtime name: nvidia",
        "cannot give GPUs to a container",
        "{gpus}",
    ),
    (
        r"subuid|subgid|insufficient UIDs|newuidmap|uid_map",
        "has no user ids for rootless containers",
        "`sudo apt install uidmap && sudo usermod -v 100000-165535 -w 100000-165535 {user}` there",
    ),
    (
        r"exec format error|does not match the (specified|detected) (host )?platform",
        "cannot run the image {image}: it is for another processor",
        "`{engine} pull --platform linux/ARCH` there, or build the image for it",
    ),
)


def trouble(host: Host, report: Entered) -> HostError:
    """Return the error of an engine's step that failed; text from the machine is never the hint."""
    engine, why, image, kind = report.engine, report.why, host.container, "container"
    if report.trouble == "no-engine":
        what = f"has no {engine}" if host.container_engine else "has no podman, docker, or apptainer"
        hint = "`sudo apt install podman` there, or remove `container` in hosts.toml"
    elif report.trouble == "no-image":
        what, kind, why = f"has no image {image}", "image", f"{engine} does not have it"
        by_hand = f"`{engine} pull {image}` there"
        hint = f"`orchestrate setup` pulls it, or copies it from where it is; by hand: {by_hand}"
    elif report.trouble in ("state", "workdir"):
        what, kind = f"reports: {engine}", report.trouble
        hint = f"set `{kind}` in hosts.toml to a folder that this user may write"
    elif re.search(r"python3\W.*(not found|no such file)|not found.*python3", why, re.IGNORECASE | re.DOTALL):
        return _no_python(host, _last(why))
    else:
        what = f"could not start a container of {image}"
        hint = f"see `container_args` in hosts.toml; `{engine} run --rm {image} true` there shows more"
        for pattern, means, fix in _TROUBLES:
            if re.search(pattern, why, re.IGNORECASE | re.DOTALL):
                texts = {"user": host.user or "$USER", "image": image, "engine": engine}
                texts["gpus"] = _GPUS.get(engine, "install NVIDIA's container toolkit there")
                what, why, hint = means.format(**texts), _last(why), fix.format(**texts)
                break
    return HostError(host.name, what, kind=kind, why=why, hint=hint)
