"""From a host entry to a `Target`: what ssh_config says of a name, asked of `ssh -G`."""

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
from orchestrator.plainfile import NotOursError, at_home, cache, make_folder, read_plain, write_atomically
from orchestrator.ranges import grouped


def reason(error: BaseException) -> str:
    """Return an exception in words: the system's text, else its own, else the name of its class."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


Options: TypeAlias = Mapping[str, Sequence[str]]  # lower-case keyword -> its values

_FRESH = 20.0  # seconds that an answer is good for, without a look at any file
_PATIENCE = 20.0  # seconds for `ssh -G`, which may run a `Match exec`
_MOST = 1 << 20  # bytes of an answer that is kept
_TICK = 10**8  # nanoseconds within which a file may change twice and bear the same time
_CUT = 200  # bytes of a path that ssh tells at most; it writes odd ones with backslashes
_READ = re.compile(r"(?m)^debug1: Reading configuration data (.+?)\r?$")
_NAMED = re.compile(r"(?m)^debug1: (?:Reading configuration data|.* include) (.+?)(?: matched no files)?\r?$")
_NOISE = re.compile(r"^(debug|OpenSSH_|$)|terminating")
# What makes an answer differ though no file does, or read files that lie anywhere.
_MOVING = re.compile(rb"""(?im)^\s*"?(match|canonicalizehostname|include\b.*[*?[].*/)|\$\{""")
_NO = frozenset({"", "no", "false"})
# Keywords that are left to OpenSSH, with the values at which they ask for nothing.
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
_DEFAULT = re.compile(r"(~|/.*)/\.ssh/id_(rsa|dsa|xmss|(ecdsa|ed25519)(_sk)?)")  # looked for by ssh itself
# Keywords with lists of algorithms: of key exchanges, ciphers, digests, host keys and keys of users.
ALGORITHMS = ("KexAlgorithms", "Ciphers", "MACs", "HostKeyAlgorithms", "PubkeyAcceptedAlgorithms")


class _Answer(Struct):
    asker: str
    stamps: dict[str, list[int]]
    told: Options


class BadConfigError(Exception):
    """ssh_config cannot be read; the text says where and why."""


class Target(Struct, frozen=True):
    """One end of a connection; `alias` is what a person would give to `ssh`."""

    alias: str
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...] = ()
    default_identities: bool = True  # nobody chose them: those ssh looks for by itself
    identities_only: bool = False
    agent: str | None = None  # path of the agent's socket
    user_known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] = ()
    accept_new: bool = False  # StrictHostKeyChecking accept-new, no or off
    algorithms: tuple[tuple[str, ...], ...] = ((),) * 5  # as ALGORITHMS; () allows all that we have
    rsa_bits: int = 1024  # of an RSA host key, at least
    by_hand: str = ""  # how a person logs in there
    beyond: str = ""  # the keyword that only OpenSSH's own client can follow
    jump: Target | None = None  # the bastion before it

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names under which known_hosts may hold its key, the best first."""
        name = self.hostname.lower()
        return (name,) if self.port == 22 else (f"[{name}]:{self.port}", name)


def client_words(host: Host, *more: str) -> list[str]:
    """Return the words of an `ssh` to a host entry, with further options."""
    flags = {"-F": host.ssh_config, "-l": host.user, "-p": host.port, "-i": host.identity}
    given = {flag: str(at_home(str(value))) for flag, value in flags.items() if value is not None}
    return ["ssh", *more, *itertools.chain.from_iterable(given.items()), "--", host.ssh]


def resolve(host: Host) -> Target:
    """Return the target of a host entry; its user, port and identity win over ssh_config. Raise HostError."""
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
    """Return the target with its bastion; what lies behind two of them is OpenSSH's."""
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
        beyond=_beyond(options),
    )  # fmt: skip


def _beyond(options: Options) -> str:
    for keyword, usual in _BEYOND.items():
        if first(options, keyword.lower()).lower() not in usual:
            return keyword
    for keyword in ("IdentityFile", "IdentityAgent"):  # `ssh -G` leaves what they stand for to the client
        if any(re.search(r"%|\$\{|^\$", value) for value in options.get(keyword.lower(), ())):
            return keyword
    # A master that somebody has opened is used, with whatever was typed for it.
    master = first(options, "controlpath", "none")
    return "ControlPath" if master != "none" and Path(master).expanduser().is_socket() else ""


def _files(value: str) -> tuple[Path, ...]:
    # ssh prints no quotes: a blank belongs to a path unless another absolute one follows.
    words = re.split(" (?=[/~])", value) if value.startswith(("/", "~")) else value.split()
    return tuple(Path(word).expanduser() for word in words if word.lower() != "none")


# --- ssh_config ---


def first(options: Options, keyword: str, default: str = "") -> str:
    values = options.get(keyword)
    return values[0] if values else default


def _look_up(host: Host) -> tuple[Target, str]:
    """Return the target and its ProxyJump; raise `BadConfigError` or OSError."""
    try:
        if host.ssh_config:  # OpenSSH does this for its own files and for those they include
            read_plain(at_home(host.ssh_config), _MOST, follow=True, ours=True)
    except NotOursError as error:
        raise BadConfigError(f"{host.ssh_config}: {error.strerror}") from error
    except OSError:
        pass  # ssh words it
    words = (shutil.which("ssh") or "ssh", *client_words(host, "-G", "-T")[1:])
    options = _ask_ssh(words, int(time.monotonic() / _FRESH))
    return target_of(host, options), first(options, "proxyjump", "none")


def _swept(folder: Path) -> Path:
    """Make the folder of answers, and now and then remove what is older than a month; raise OSError."""
    make_folder(folder)
    for file in folder.iterdir() if os.urandom(1)[0] < 5 else ():  # a folder may be long
        if time.time() - file.stat().st_mtime > 30 * 86_400:
            file.unlink()
    return folder


@functools.lru_cache(maxsize=1024)
def _ask_ssh(words: tuple[str, ...], _when: int) -> Options:
    """Return what `ssh -G` says: from the user's cache, while no file is another than when it was asked."""
    asker = "\0".join((os.uname().nodename, *words))
    name = hashlib.sha256(asker.encode(errors="surrogateescape")).hexdigest()
    with contextlib.suppress(OSError, RuntimeError, ValueError, msgspec.MsgspecError):
        answer = msgspec.json.decode(read_plain(cache("ssh") / name, _MOST, ours=True), type=_Answer)
        if answer.asker == asker and all(_stamp(path) == stamp for path, stamp in answer.stamps.items()):
            return answer.told
    began = time.time_ns()
    done = processes.run([words[0], "-v", *words[1:]], _PATIENCE)
    out, err = (text.decode("utf-8", "surrogateescape") for text in (done.out, done.err))
    if done.status is None:
        raise BadConfigError(f"ssh -G took more than {_PATIENCE:.0f} s, or flooded us (a Match exec?)")
    if done.status != 0:
        lines = [line for line in err.splitlines() if not _NOISE.search(line)]
        raise BadConfigError(lines[-1] if lines else f"ssh -G exited with {done.status}")
    told = parse_dump(out)
    with contextlib.suppress(OSError, RuntimeError, UnicodeError):
        named = [str(at_home(path)) for path in _NAMED.findall(err)]
        texts = [Path(path).read_bytes() for path in _READ.findall(err)]
        strange = [path for path in named if "\\" in path or len(path) >= _CUT]  # not as it is written
        if texts and not strange and not any(map(_MOVING.search, texts)):
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
            around = (str(Path(path).parent) for path in named)
            places = (words[0], str(home / ".ssh"), "/etc/ssh", *named, *around)
            stamps = {path: _stamp(path) for path in places}
            if max(stamp[0] for stamp in stamps.values() if stamp) < began - _TICK:
                write_atomically(
                    _swept(cache("ssh")) / name, msgspec.json.encode(_Answer(asker, stamps, told))
                )
    return told


def _stamp(path: str) -> list[int]:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return [found.st_mtime_ns, found.st_size, found.st_ino]
    return []


def parse_dump(text: str) -> Options:
    """Read the output of `ssh -G`: a keyword and its value a line; some keywords come several times."""
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
