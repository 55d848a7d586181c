"""What a login's pip was told, in the words of uv: environments are made by uv, and people have a pip.conf.

Files and their order are told in pip's documentation ("Configuration"), the variables in uv's
("Environment variables").
"""

from __future__ import annotations

import configparser
import os

from ..base.annotations import Mapping

_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_SECTIONS = ("global", "download", "install")  # a later one is said of what we do


def in_words_of_uv(login: Mapping[str, str], root: str = "/") -> dict[str, str]:
    """The variables that are missing in a login's environment; files count where uv has none of its own."""
    told = {} if _has_uv_toml(login, root) else _of_files(login, root)
    told.update(
        (name[len("PIP_") :].lower().replace("_", "-"), value)
        for name, value in login.items()
        if name.startswith("PIP_") and value
    )
    made = {}
    for name, theirs in _UV.items():
        values = told.get(name, "").split()
        if name == "find-links":  # where one is missing pip warns and uv ends
            values = [one for one in values if "://" in one or os.path.isdir(os.path.expanduser(one))]
        value = ("," if name == "find-links" else " ").join(values)
        if not value or theirs in login or (name == "proxy" and any(one in login for one in _PROXIES)):
            continue
        made[theirs] = value
    return made


def _of_files(login: Mapping[str, str], root: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in _files(login, root):
        parser = configparser.RawConfigParser()
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                parser.read_file(file)
        except (OSError, configparser.Error):
            continue
        for section in _SECTIONS:
            if parser.has_section(section):
                found.update(parser.items(section))
    return found


def _files(login: Mapping[str, str], root: str) -> list[str]:
    named = login.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:  # pip's way of saying: none at all
        return []
    everybody = login.get("XDG_CONFIG_DIRS") or os.path.join(root, "etc", "xdg")
    candidates = [os.path.join(one, "pip", "pip.conf") for one in reversed(everybody.split(":")) if one]
    candidates.append(os.path.join(root, "etc", "pip.conf"))
    home = login.get("HOME", "")
    if home:
        candidates.append(os.path.join(home, ".pip", "pip.conf"))
    candidates.append(os.path.join(_config(login), "pip", "pip.conf"))
    candidates.append(named)
    return [path for path in candidates if os.path.isfile(path)]


def _has_uv_toml(login: Mapping[str, str], root: str) -> bool:
    candidates = [
        login.get("UV_CONFIG_FILE", ""),
        os.path.join(_config(login), "uv", "uv.toml"),
        os.path.join(root, "etc", "uv", "uv.toml"),
    ]
    return any(os.path.isfile(path) for path in candidates)


def _config(login: Mapping[str, str]) -> str:
    return login.get("XDG_CONFIG_HOME") or os.path.join(login.get("HOME", ""), ".config")
