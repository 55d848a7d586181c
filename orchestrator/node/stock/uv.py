"""uv on a node: how it is called, and the errors it reports.

Users have a pip.conf, but environments are created by uv: pip's settings are passed on in uv's variables
unless uv has settings of its own.
"""

from __future__ import annotations

import configparser
import os
from contextlib import suppress
from typing import Any, Mapping

from ..base.fault import NodeError, reason
from ..base.program import Said, listen
from ..serve.agent import Request

NO_INDEX = "no-index"  # the kind of an error: packages must come another way
_LINES = 12  # of uv's output in an error
_SECONDS = 2 * 3600.0
_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
_UNREACHED = ("error sending request", "failed to fetch", "dns error", "client error (connect)", "timed out")
# uv's own list of certificates lacks that of a proxy which signs for all sites; the machine's has it.
UNTRUSTED = "invalid peer certificate: UnknownIssuer"
OWN_CERTIFICATES = {"UV_SYSTEM_CERTS": "1"}
_NO_WHEEL = ("no wheels with a matching", "no source distribution", "only has wheels")
# An index that responds but lacks what was resolved elsewhere: the controller's may be a private one.
_LACKING = ("not found in the package registry", "there is no version of", "network was disabled")


def call(request: Request, arguments: list[str], **settings: str) -> Said:
    argv = [os.path.expanduser(str(request["uv"])), *arguments]
    env = {**environment(os.environ), **settings}
    done = run("uv", argv, env)
    return run("uv", argv, {**env, **OWN_CERTIFICATES}) if UNTRUSTED.encode() in done.err else done


def run(what: str, argv: list[str], env: dict[str, str]) -> Said:
    """Run a program; raise NodeError if something killed it."""
    made = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    # uv reads the configuration of the project in its working folder.
    try:
        done = listen([os.fsencode(word) for word in argv], made, _SECONDS, "/")
    except OSError as error:
        hint = "run `orchestrate setup` again"
        if isinstance(error, PermissionError):
            hint = "set `workdir` to a folder on a disk that is not mounted with `noexec`"
        raise NodeError("env", "cannot run %s" % argv[0], reason(error), hint) from error
    if done.status < 0:
        raise NodeError(
            "env",
            f"cannot create the environment: {what} was {done.killed or 'ended'}",
            done.why or "SIGKILL is `kill -9` or the kernel's out-of-memory killer",
            "`dmesg -T | grep -i oom` there; then run `orchestrate setup` again",
        )
    return done


def environment(login: Mapping[str, str]) -> "dict[str, str]":
    """Return the login's environment, with pip's settings where uv has none."""
    made = {**_of_pip(login), **compiling(login)}
    made.update(UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never", NO_COLOR="1")
    return made


def _of_pip(login: Mapping[str, str]) -> "dict[str, str]":
    home = login.get("HOME", "")
    config = login.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", os.path.join(home, ".pip/pip.conf")]
    files += [os.path.join(config, "pip/pip.conf"), login.get("PIP_CONFIG_FILE", "")]
    values: dict[str, str] = {}
    if not any(map(os.path.isfile, (os.path.join(config, "uv/uv.toml"), "/etc/uv/uv.toml"))):
        parser = configparser.RawConfigParser(strict=False)
        for path in files:
            # pip itself reports what is wrong with it
            with suppress(OSError, UnicodeError, configparser.Error):
                parser.read(path, encoding="utf-8")
                values.update(parser.items("global"))
    values.update(
        (name[4:].lower().replace("_", "-"), value) for name, value in login.items() if name[:4] == "PIP_"
    )
    return {theirs: " ".join(values[name].split()) for name, theirs in _OF_PIP.items() if values.get(name)}


def compiling(login: Any) -> dict[str, str]:
    """Return the login's environment without settings for another Python, or another place of bytecode."""
    others = {"PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
    return {name: value for name, value in login.items() if name not in others}


def failed(arguments: list[str], log: str) -> NodeError:
    what = f"cannot create the environment: `uv {arguments[0]}` failed"
    kind, hint = "env", "fix what uv reports, then run `orchestrate setup`"
    if any(message in log.lower() for message in _NO_WHEEL):
        hint = 'set `python = "3.12"` under [env], or other versions of the packages'
    elif any(message in log.lower() for message in (*_UNREACHED, *_LACKING)):
        kind, hint = NO_INDEX, 'set `via = "controller"` under [env]: this machine then sends the packages'
    # The folder in uv's first line differs between hosts; without it equal errors fold.
    message = "\n".join(line for line in log.split("\n") if not line.startswith("Using Python "))
    return NodeError(kind, what, tail(message), hint)


def no_python(request: Request, python: str, stderr: bytes) -> NodeError:
    hint = "set `python` under [env] to one that is there; or install it (`apt install python3`)"
    if python[:1] in "3<>=~!":
        hint += f"; or let uv do it there: `{request['uv']} python install '{python}'`"
    why = tail(stderr.decode("utf-8", "replace"), 2)
    return NodeError("no-python", f"has no Python that fits {python!r}", why, hint)


def tail(text: str, lines: int = _LINES) -> str:
    return "\n".join([line.rstrip() for line in text.strip().split("\n") if line.strip()][-lines:])
