"""What pip was told counts for uv as well: files in its order, then variables, unless uv was told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.stock.pipconf import in_words_of_uv

MIRROR = "http://mirror.example/simple"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def words(root: Path, **login: str) -> dict[str, str]:
    return in_words_of_uv({"HOME": str(root / "home"), **login}, str(root))


def test_without_files_and_variables_nothing_is_said(tmp_path: Path) -> None:
    assert words(tmp_path) == {}


@pytest.mark.parametrize(
    "place", ["etc/pip.conf", "etc/xdg/pip/pip.conf", "home/.pip/pip.conf", "home/.config/pip/pip.conf"]
)
def test_a_file_in_each_of_pips_places(tmp_path: Path, place: str) -> None:
    write(tmp_path / place, f"[global]\nindex-url = {MIRROR}\ncert = /etc/ours.pem\n")
    assert words(tmp_path) == {"UV_DEFAULT_INDEX": MIRROR, "SSL_CERT_FILE": "/etc/ours.pem"}


def test_the_users_file_is_said_after_the_machines_and_a_variable_after_both(tmp_path: Path) -> None:
    write(tmp_path / "etc/pip.conf", "[global]\nindex-url = http://machine\nproxy = http://proxy:3128\n")
    write(tmp_path / "home/.config/pip/pip.conf", "[install]\nindex-url = http://user\n")
    assert words(tmp_path) == {"UV_DEFAULT_INDEX": "http://user", "ALL_PROXY": "http://proxy:3128"}
    assert words(tmp_path, PIP_INDEX_URL="http://shell")["UV_DEFAULT_INDEX"] == "http://shell"


def test_what_uv_was_told_stays(tmp_path: Path) -> None:
    write(tmp_path / "etc/pip.conf", f"[global]\nindex-url = {MIRROR}\nproxy = http://proxy:3128\n")
    assert words(tmp_path, UV_DEFAULT_INDEX="http://uv", https_proxy="http://own") == {}
    write(tmp_path / "home/.config/uv/uv.toml", "")
    assert words(tmp_path) == {}
    assert words(tmp_path, PIP_INDEX_URL=MIRROR) == {"UV_DEFAULT_INDEX": MIRROR}


def test_lists_are_written_as_uv_reads_them(tmp_path: Path) -> None:
    text = "[global]\nextra-index-url =\n    http://a/simple\n    http://b/simple\n"
    write(
        tmp_path / "etc/pip.conf", f"{text}find-links = /\n    /missing\n    http://c/w\ntrusted-host = a b\n"
    )
    assert words(tmp_path) == {
        "UV_INDEX": "http://a/simple http://b/simple",
        "UV_FIND_LINKS": "/,http://c/w",
        "UV_INSECURE_HOST": "a b",
    }


def test_the_file_that_a_variable_names_and_none_at_all(tmp_path: Path) -> None:
    write(tmp_path / "etc/pip.conf", "[global]\nindex-url = http://machine\n")
    write(tmp_path / "own.conf", f"[global]\nindex-url = {MIRROR}\n")
    assert words(tmp_path, PIP_CONFIG_FILE=str(tmp_path / "own.conf")) == {"UV_DEFAULT_INDEX": MIRROR}
    assert words(tmp_path, PIP_CONFIG_FILE=os.devnull) == {}


@pytest.mark.parametrize("text", ["index-url = x\n", "[global\n", "[global]\n[global]\n", "\x00\xff"])
def test_a_file_that_is_none_says_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path / "etc/pip.conf", text)
    assert words(tmp_path) == {}
