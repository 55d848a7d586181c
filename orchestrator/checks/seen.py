"""What the checks look at: one host's answers, and what the job needs."""

from __future__ import annotations

import ipaddress
import re
import shlex
from dataclasses import dataclass
from enum import Flag, auto
from functools import cached_property, lru_cache, reduce
from operator import or_

from orchestrator import wire
from orchestrator.events import Check, CheckReported, Level
from orchestrator.model import DEFAULT_PYTHON, EnvironmentPlan, Host, interpreter

# The distributions under which TensorFlow is installed, and what is compared beside it.
TENSORFLOW = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
)
PACKAGES = (*TENSORFLOW, "tf-keras", "keras", "numpy", "tensorflow-datasets", "protobuf")
PACKAGES_PAGE = "docs/setup.md#packages"  # `packages` replaces the default list, which that page shows
# What is imported of each; of TensorFlow's distributions all bring the same module.
MODULES = {
    **dict.fromkeys(TENSORFLOW, "tensorflow"),
    "tf-keras": "tf_keras",
    "keras": "keras",
    "numpy": "numpy",
    "tensorflow-datasets": "tensorflow_datasets",
    "protobuf": "google.protobuf",
}


# Linux has names of 15 bytes; an alias of old is eth0:1, a tunnel may have an @.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,30}|\?")


@dataclass(frozen=True)
class Needs:
    tensorflow: bool  # the job is our program, a Python or an R script: without TensorFlow it cannot run
    legacy_keras: bool  # TF_USE_LEGACY_KERAS is set: tf_keras has to be there
    r: bool = False  # the job is an R script: R and reticulate have to be there
    tasks: int = 1  # of the run
    python: int = 0  # the minor version of Python 3 that the job's grammar needs; 0: any
    python_at: str = ""  # where
    setup: bool = False  # [job] has a `setup`, which runs before the Python and can be what fails
    environment: EnvironmentPlan | None = None  # what [env] makes: nobody is to install into it by hand


@dataclass(frozen=True)
class Seen:
    """One host and its answers to `hello`, `facts` (asked for PACKAGES) and `listen`."""

    host: Host
    ports: tuple[int, ...]  # of its tasks
    hello: wire.Hello
    facts: wire.MachineFacts
    listen: wire.Listening
    clock: float = 0.0  # seconds its clock is ahead of ours
    imported: wire.Imported | None = None  # None: nobody tried

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def machine(self) -> tuple[object, object]:
        """Two hosts with the same one share their ports."""
        return self.hello.boot_id, self.hello.netns

    @property
    def distribution(self) -> str | None:
        """The one that provides TensorFlow."""
        return next((name for name in TENSORFLOW if self.version(name)), None)

    @property
    def tensorflow(self) -> str | None:
        """Its version, whatever its distribution is called."""
        return next((found for name in TENSORFLOW if (found := self.version(name))), None)

    def is_made(self, needs: Needs) -> bool:
        """Whether it trains in the environment of [env], and not with a Python of the user's own."""
        return needs.environment is not None and self.host.python == interpreter(self.host, needs.environment)

    def version(self, package: str) -> str | None:
        """As it was imported, else as its files say."""
        module = MODULES.get(package)
        for one in self.imported.modules if self.imported is not None else ():
            if one.name == module and one.version and self.facts.packages.get(package):
                return one.version
        return self.facts.packages.get(package)

    @cached_property
    def interfaces(self) -> tuple[wire.Interface, ...]:
        """Those with addresses and names that are such: hints quote both."""
        return tuple(
            one for one in self.facts.interfaces if kinds_of(one.ip) and _INTERFACE.fullmatch(one.name)
        )

    @cached_property
    def ips(self) -> tuple[str, ...]:
        """Its addresses; whatever else it may have called so is left out."""
        return tuple(ip for ip in self.facts.ip if kinds_of(ip))

    def says(
        self,
        check: Check,
        level: Level,
        found: str,
        why: str = "",
        hint: str = "",
        *,
        between: bool = False,
        fix: tuple[str, ...] = (),
    ) -> CheckReported:
        return CheckReported(self.name, check, level, found, why, hint, between, fix)

    def pip(self, *words: str) -> tuple[str, tuple[str, ...]]:
        """What to do so that its Python has them, and the command if one does it; "" where it is not known.

        Nothing is installed into a Python that the distribution keeps for itself: pip refuses (PEP 668).
        """
        python = self.facts.python
        if python.managed:
            leave = "" if self.host.python == DEFAULT_PYTHON else "leave `python` out, "
            made = "add a table [env] to hosts.toml, then `orchestrate setup`, which makes an environment"
            return f"{leave}{made} (docs/setup.md)", ()
        if python.path is None:
            return "", ()
        command = (python.path, "-m", "pip", "install", *words)
        return f"`{shlex.join(command)}`", command


class IpKind(Flag):
    """What an IP address is."""

    NONE = 0  # no address
    ANY = auto()  # every address is
    LOOPBACK = auto()
    LINK_LOCAL = auto()
    GLOBAL = auto()
    V6 = auto()


@lru_cache(maxsize=1 << 14)  # many hosts of one machine or image have the same ones
def kinds_of(text: str) -> IpKind:
    """All that an IP address is; it may have the zone of a link-local one."""
    address, _, zone = text.partition("%")
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return IpKind.NONE
    if zone and not _INTERFACE.fullmatch(zone):
        return IpKind.NONE
    facts = {
        IpKind.LOOPBACK: ip.is_loopback,
        IpKind.LINK_LOCAL: ip.is_link_local,
        IpKind.GLOBAL: ip.is_global,
        IpKind.V6: ip.version == 6,
    }
    return reduce(or_, (kind for kind, found in facts.items() if found), IpKind.ANY)


def release(version: str) -> tuple[int, ...]:
    """(2, 21) of "2.21.0rc1", to be compared."""
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else 0 for part in minor(version))


def minor(version: str) -> tuple[str, ...]:
    """`2.21` of `2.21.0`: what has to be equal, where the rest may differ."""
    return tuple(version.split(".")[:2])
