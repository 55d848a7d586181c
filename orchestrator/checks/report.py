"""Rows of checks and their input: replies of hosts, requirements of the job, pairs of hosts. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TypeAlias

from msgspec.structs import replace

from orchestrator import wire
from orchestrator.config import targets
from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import DEFAULT_PYTHON, EnvironmentPlan, FrameworkName, Host, interpreter
from orchestrator.ranges import fold, grouped
from orchestrator.value import Value

# The distributions under which TensorFlow is installed.
TENSORFLOW = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
)
# What is imported of each distribution; all of TensorFlow's provide the same module.
MODULES = {
    **dict.fromkeys(TENSORFLOW, "tensorflow"),
    **{package: module for each in FRAMEWORKS.values() for package, module in each.packages.items()},
    "numpy": "numpy",
}
PACKAGES = tuple(MODULES)
# Linux interface names have 15 bytes; an old-style alias is eth0:1, a tunnel may have an @.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,30}")


class Needs(Value):
    needed: bool  # the job needs its framework: it is our program, or a Python or R script
    legacy_keras: bool  # TF_USE_LEGACY_KERAS is set: tf_keras is required
    framework: FrameworkName = FrameworkName.TENSORFLOW
    r: bool = False  # the job is an R script: R and reticulate are required
    environment: EnvironmentPlan | None = None  # created by [env]: nothing is installed by hand
    helpers: frozenset[str] = frozenset()  # hosts that run only a service, which is not a Python script

    def of(self, host: str) -> Needs:
        """Return the needs of one host: a missing framework is no failure on a helper."""
        return replace(self, needed=False) if host in self.helpers else self


class HostReport(Value, dict=True):
    """One host and its replies to `hello`, `facts` (for PACKAGES), `listen` and `imports`."""

    host: Host
    ports: tuple[int, ...]  # of its tasks
    hello: wire.Hello
    facts: wire.MachineFacts
    listen: wire.Listening
    clock: float = 0.0  # seconds that the host's clock is ahead of ours
    imported: wire.Imported | None = None  # None: not tried

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def machine(self) -> tuple[object, object]:
        """Return an identifier of the machine; equal ones share their ports."""
        return self.hello.boot_id, self.hello.netns

    @property
    def distribution(self) -> str | None:
        """Return the distribution that provides TensorFlow."""
        return next((name for name in TENSORFLOW if self.facts.packages.get(name)), None)

    def is_made(self, needs: Needs) -> bool:
        """Return True if the host trains in the environment of [env], and not with its own `python`."""
        return needs.environment is not None and self.host.python == interpreter(self.host, needs.environment)

    def version(self, package: str) -> str | None:
        """Return the version as imported, or as installed; TensorFlow's from any distribution."""
        if package == "python":
            return self.facts.python.version
        if package == "tensorflow":
            package = self.distribution or package
        installed = self.facts.packages.get(package)
        for module in self.imported.modules if self.imported is not None and installed else ():
            if module.name == MODULES.get(package) and module.version:
                return module.version
        return installed

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Return a host's IP addresses with the interface of each, without loopback: hints quote both."""
        return {
            interface.ip: interface.name if _INTERFACE.fullmatch(interface.name) else ""
            for interface in self.facts.addresses
            if (ip := ip_of(interface.ip)) and not ip.is_loopback
        }

    def pip(self, *arguments: str, installs: Sequence[str] = ()) -> str:
        """Return the hint that installs packages for the host's Python; "" if none is known.

        `installs` are the packages of an [env] whose default does not fit. Nothing is installed into a
        Python without pip, or one that the distribution manages (PEP 668).
        """
        python = self.facts.python
        if python.no_pip:
            leave = "" if self.host.python == DEFAULT_PYTHON else "remove `python`, "
            table = f"[env] table with `packages = {json.dumps(installs)}`" if installs else "[env] table"
            then = "then run `orchestrate setup` to create an environment (docs/setup.md)"
            return f"{leave}add an {table} to hosts.toml, {then}"
        if python.path is None:
            return ""
        return f"`{shlex.join((python.path, '-m', 'pip', 'install', *arguments))}`"


class Evidence(Value):
    """All hosts that replied, and the connections between them."""

    reports: Sequence[HostReport]
    needs: Needs
    pairs: Sequence[PairReported] = ()
    extra: Sequence[PairReported] = ()  # on ports chosen by the kernel


class Judgment(Value):
    level: Level
    text: str  # short: "3.11.2", "120 GB free"
    why: str = ""
    hint: str = ""
    between: bool = False  # involves the host and others, any of which may be the cause


Judgments: TypeAlias = Iterator[tuple[str, Judgment]]  # by the name of the host


class Check(Value):
    """One row of the table: a name, a judgment, and a fix."""

    name: str
    judge: Callable[[Evidence], Iterable[tuple[str, Judgment]]]
    fix: str = ""  # the hint for a finding that has none of its own

    def reports(self, evidence: Evidence) -> Iterator[CheckReported]:
        for host, judged in self.judge(evidence):
            hint = judged.hint or ("" if judged.level is Level.OK else self.fix)
            texts = judged.text, judged.why, hint
            yield CheckReported(host, self.name, judged.level, *texts, judged.between)


def each(judge: Callable[[HostReport, Needs], Iterable[Judgment]]) -> Callable[[Evidence], Judgments]:
    """Return a judgment of all hosts, one by one."""

    def judge_all(evidence: Evidence) -> Judgments:
        for report in evidence.reports:
            for finding in judge(report, evidence.needs.of(report.name)):
                yield report.name, finding

    return judge_all


def unlike(texts: Iterable[tuple[str, str]], why: str, *, shows: bool = False) -> Judgments:
    """Warn about hosts whose text differs from that of most hosts; `texts` are pairs of text and host.

    With `shows` the usual text is reported, too.
    """
    hosts = grouped((text, name) for text, name in texts if text)
    usual = max(hosts, key=lambda text: len(hosts[text]), default="")
    for text, names in hosts.items():
        differs = Judgment(Level.WARN, text, f"{fold(hosts[usual])}: {usual}; {why}", between=True)
        if shows or text != usual:
            yield from ((name, ok(text) if text == usual else differs) for name in names)


def ok(text: str = "ok") -> Judgment:
    return Judgment(Level.OK, text)


@lru_cache(maxsize=1 << 14)  # many hosts have the same ones
def ip_of(text: str) -> targets.IpAddress | None:
    """Return a parsed IP address; None for a name, or an address with a zone."""
    return targets.ip_of(text) if "%" not in text else None


def minor(version: str, parts: int = 2) -> tuple[str, ...]:
    """Return `2.21` of `2.21.0`: the part that must be equal."""
    return tuple(version.split(".")[:parts])


def release(version: str) -> tuple[int, ...]:
    """Return (2, 21) for "2.21.0rc1", for comparisons."""
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else 0 for part in minor(version))


def between(interface: str) -> bool:
    """Return True for an interface that may lead to other machines."""
    return not interface.startswith(("lo", "docker", "br-", "veth", "virbr"))


def set_key(key: str, value: str) -> str:
    return f"set `{key}` in hosts.toml to {value}"
