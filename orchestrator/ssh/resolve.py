"""From a host entry to a `Target`, through `ssh -G`, which evaluates ssh_config."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import pwd
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orchestrator import processes
from orchestrator.errors import HereError, HostError
from orchestrator.model import Host
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import NotOursError, at_home, cache, make_folder, read_plain, write_atomically
from orchestrator.ranges import grouped
from orchestrator.value import Value

Options: TypeAlias = Mapping[str, Sequence[str]]  # lower-case keyword -> its values

_FRESH = 20.0  # seconds that an answer is valid without checking any file
_PATIENCE = 20.0  # seconds for `ssh -G`, which may run a `Match exec`
_MOST = 1 << 20  # bytes of an answer that is stored
_TICK = 10**8  # nanoseconds within which a file may change twice with the same time
_CUT = 200  # bytes of a path that ssh prints at most; unusual ones contain backslashes
_READ = re.compile(r"(?m)^debug1: Reading configuration data (.+?)\r?$")
_NAMED = re.compile(r"(?m)^debug1: (?:Reading configuration data|.* include) (.+?)(?: matched no files)?\r?$")
_NOISE = re.compile(r"^(debug|OpenSSH_|$)|terminating")
# What changes an answer without changing a file, or refers to files anywhere.
_MOVING = re.compile(rb"""(?im)^\s*"?(match|canonicalizehostname|include\b.*[*?[].*/)|\$\{""")
_NO = frozenset({"", "no", "false"})
# Keywords that are left to OpenSSH, with the values that require nothing.
_BEYOND: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("KnownHostsCommand", "RevokedHostKeys", "CertificateFile", "PKCS11Provider", "ProxyCommand",
         "BindAddress", "BindInterface", "SetEnv", "RefuseConnection", "HostKeyAlias"),
        frozenset({"", "none"}),
    ),
    **dict.fromkeys(("VerifyHostKeyDNS", "NoHostAuthenticationForLocalhost", "HostbasedAuthentication"), _NO),
    "AddressFamily": frozenset({"", "any"}),
    "PubkeyAuthentication": frozenset({"", "yes", "true", "unbound", "host-bound"}),
}  # fmt: skip
# Options that would break a session with our agent. Older clients than 8.7 know them neither here nor there.
_OVERRIDDEN = {"ForkAfterAuthentication": "no", "StdinNull": "no", "SessionType": "default"}
# ssh looks for these by itself.
_DEFAULT = re.compile(r"(~|/.*)/\.ssh/id_(rsa|dsa|xmss|(ecdsa|ed25519)(_sk)?)")
# Keywords with lists of algorithms: of key exchanges, ciphers, digests, host keys and user keys.
ALGORITHMS = ("KexAlgorithms", "Ciphers", "MACs", "HostKeyAlgorithms", "PubkeyAcceptedAlgorithms")


class _Answer(Struct):
    asker: str
    stamps: dict[str, list[int]]
    options: Options


_decode = msgspec.json.Decoder(_Answer).decode


class BadConfigError(Exception):
    """ssh_config cannot be read; the text gives the location and the reason."""


class Target(Value):
    """One end of a connection; `alias` is the argument that a user would give to `ssh`."""

    alias: str
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...] = ()
    default_identities: bool = True  # not configured: ssh's default files
    identities_only: bool = False
    agent: str | None = None  # path of the agent's socket
    user_known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] = ()
    accept_new: bool = False  # StrictHostKeyChecking accept-new, no or off
    algorithms: tuple[tuple[str, ...], ...] = ((),) * 5  # as ALGORITHMS; () allows all that we support
    rsa_bits: int = 1024  # of an RSA host key, at least
    by_hand: str = ""  # how a user logs in there
    overridden: tuple[str, ...] = ()  # options of a session that OpenSSH's client is given
    beyond: str = ""  # the keyword that only OpenSSH's own client supports
    jump: Target | None = None  # the bastion before it

    @property
    def key_names(self) -> tuple[str, ...]:
        """Return the names under which known_hosts may list its key, the best first."""
        name = self.hostname.lower()
        return (name,) if self.port == 22 else (f"[{name}]:{self.port}", name)


def client_words(host: Host, *more: str) -> list[str]:
    """Return the arguments of `ssh` for a host entry, with additional options."""
    flags = {"-F": host.ssh_config, "-l": host.user, "-p": host.port, "-i": host.identity}
    given = {flag: str(at_home(str(value))) for flag, value in flags.items() if value is not None}
    return ["ssh", *more, *itertools.chain.from_iterable(given.items()), "--", host.ssh]


def resolve(host: Host) -> Target:
    """Return the target of a host entry; its user, port and identity override ssh_config. Raise HostError."""
    identity = host.identity and at_home(host.identity)
    if identity and not identity.is_file():
        why = "`identity` in the inventory names a file that is not there"
        make = f"`{shlex.join(['ssh-keygen', '-t', 'ed25519', '-f', str(identity)])}` makes one"
        raise HostError(
            host.name, f"has no identity file {host.identity}", kind="identity", why=why, hint=make
        )
    try:
        return _resolve(host)
    except BadConfigError as error:
        hint = f"`{shlex.join(client_words(host, '-G'))}`"
        what = "cannot be resolved from ssh_config"
        raise HostError(host.name, what, kind="config", why=str(error), hint=hint) from error
    except FileNotFoundError as error:
        raise HereError(host.name, "there is no program `ssh`", "install openssh-client here") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise HereError(host.name, where + reason(error)) from error


def _resolve(host: Host) -> Target:
    """Return the target with its bastion; chains of two or more are left to OpenSSH."""
    target, jump = _look_up(host)
    if jump.lower() == "none":
        return target
    user, alias, port = split_destination(jump.partition(",")[0])
    bastion, further = _look_up(Host(alias, alias, alias, user, port, ssh_config=host.ssh_config))
    if "," in jump or further.lower() != "none":
        return replace(target, beyond="ProxyJump over several hosts")
    beyond = target.beyond or (bastion.beyond and f"{bastion.beyond} of {bastion.alias}")
    return replace(target, jump=bastion, beyond=beyond)


def target_of(host: Host, options: Options) -> Target:
    """Return the target that these options describe, without its bastion."""
    identities = [value for value in options.get("identityfile", ()) if value != "none"]
    agent = first(options, "identityagent", "SSH_AUTH_SOCK")
    return Target(
        alias=split_destination(host.ssh)[1],
        by_hand=host.by_hand(),
        hostname=first(options, "hostname", host.ssh),
        port=int(first(options, "port", "22")),
        user=first(options, "user"),
        identities=tuple(Path(value).expanduser() for value in identities),
        default_identities=not host.identity and all(map(_DEFAULT.fullmatch, identities)),
        identities_only=first(options, "identitiesonly") not in _NO,
        agent=None if agent == "none"
        else os.environ.get(agent) if agent == "SSH_AUTH_SOCK"
        else str(Path(agent).expanduser()),
        user_known_hosts=_files(first(options, "userknownhostsfile")),
        global_known_hosts=_files(first(options, "globalknownhostsfile")),
        accept_new=first(options, "stricthostkeychecking", "ask") in {"accept-new", "off", "no", "false"},
        algorithms=tuple(
            tuple(filter(None, first(options, name.lower()).split(","))) for name in ALGORITHMS
        ),
        rsa_bits=int(first(options, "requiredrsasize", "1024")),
        overridden=tuple(f"{key}={value}" for key, value in _OVERRIDDEN.items() if key.lower() in options),
        beyond=_beyond(options),
    )  # fmt: skip


def _beyond(options: Options) -> str:
    for keyword, usual in _BEYOND.items():
        if first(options, keyword.lower()).lower() not in usual:
            return keyword
    for keyword in ("IdentityFile", "IdentityAgent"):  # `ssh -G` leaves them for the client to expand
        if any(re.search(r"%|\$\{|^\$", value) for value in options.get(keyword.lower(), ())):
            return keyword
    # A master that the user has opened is used, with its completed login.
    master = first(options, "controlpath", "none")
    return "ControlPath" if master != "none" and Path(master).expanduser().is_socket() else ""


def _files(value: str) -> tuple[Path, ...]:
    # ssh prints no quotes: a blank belongs to a path unless another absolute one follows.
    parts = re.split(" (?=[/~])", value) if value.startswith(("/", "~")) else value.split()
    return tuple(Path(word).expanduser() for word in parts if word.lower() != "none")


# --- ssh_config ---


def first(options: Options, keyword: str, default: str = "") -> str:
    values = options.get(keyword)
    return values[0] if values else default


def _look_up(host: Host) -> tuple[Target, str]:
    """Return the target and its ProxyJump; raise `BadConfigError` or OSError."""
    try:
        if host.ssh_config:  # OpenSSH does this for its own files and those they include
            read_plain(at_home(host.ssh_config), _MOST, follow=True, ours=True)
    except NotOursError as error:
        raise BadConfigError(f"{host.ssh_config}: {error.strerror}") from error
    except OSError:
        pass  # ssh provides the text
    # Without a command, `ssh -G` fails for ForkAfterAuthentication unless there is no session.
    command = (shutil.which("ssh") or "ssh", *client_words(host, "-G", "-T", "-N")[1:])
    options = _ask_ssh(command, int(time.monotonic() / _FRESH))
    return target_of(host, options), first(options, "proxyjump", "none")


@functools.lru_cache(maxsize=1024)
def _ask_ssh(command: tuple[str, ...], _when: int) -> Options:
    """Return the output of `ssh -G`: from the user's cache, as long as its files are unchanged."""
    asker = "\0".join((os.uname().nodename, *command))
    name = hashlib.sha256(asker.encode(errors="surrogateescape")).hexdigest()
    with contextlib.suppress(OSError, RuntimeError, ValueError, msgspec.MsgspecError):
        answer = _decode(read_plain(cache("ssh") / name, _MOST, ours=True))
        if answer.asker == asker and all(stamp(path) == then for path, then in answer.stamps.items()):
            return answer.options
    began = time.time_ns()
    done = processes.run([command[0], "-v", *command[1:]], _PATIENCE)
    out, err = (text.decode("utf-8", "surrogateescape") for text in (done.out, done.err))
    if done.why:
        raise BadConfigError(f"ssh -G: {done.why} (a Match exec?)")
    if done.status != 0:
        lines = [line for line in err.splitlines() if not _NOISE.search(line)]
        raise BadConfigError(lines[-1] if lines else f"ssh -G exited with {done.status}")
    options = parse_dump(out)
    with contextlib.suppress(OSError, RuntimeError, UnicodeError):
        named = [str(at_home(path)) for path in _NAMED.findall(err)]
        texts = [Path(path).read_bytes() for path in _READ.findall(err)]
        strange = [path for path in named if "\\" in path or len(path) >= _CUT]  # not as it is written
        if texts and not strange and not any(map(_MOVING.search, texts)):
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
            around = (str(Path(path).parent) for path in named)
            places = (command[0], str(home / ".ssh"), "/etc/ssh", *named, *around)
            stamps = {path: stamp(path) for path in places}
            if max(then[0] for then in stamps.values() if then) < began - _TICK:
                make_folder(cache("ssh"))
                write_atomically(cache("ssh") / name, msgspec.json.encode(_Answer(asker, stamps, options)))
    return options


def stamp(path: str) -> list[int]:
    """Return what changes with a file; [] if there is none."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return [status.st_mtime_ns, status.st_size, status.st_ino]
    return []


def parse_dump(text: str) -> Options:
    """Parse the output of `ssh -G`: a keyword and its value per line; some keywords are repeated."""
    lines = (line.partition(" ") for line in text.splitlines())
    return grouped((keyword.lower(), value) for keyword, _, value in lines)


def split_destination(text: str) -> tuple[str | None, str, int | None]:
    """Split `[ssh://][user@]host[:port]`; IPv6 with a port is in brackets."""
    text = text.strip().removeprefix("ssh://").rstrip("/")
    user, at, rest = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^]]+)\](?::(\d+))?", rest)
    match = bracketed or re.fullmatch(r"([^:]+):(\d+)", rest)
    host, port = (match[1], match[2]) if match else (rest, None)
    return (user if at else None), host, (int(port) if port else None)
