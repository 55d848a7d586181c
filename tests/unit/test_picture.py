"""README's picture is what the live display shows today."""

from __future__ import annotations

import html
import re

from tests import picture


def rows(svg: str) -> list[str]:
    """The text of the picture, a row each."""
    placed = re.findall(r'<text class="orchestrate-r\d+"[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg)
    found: dict[str, str] = {}
    for y, text in placed:
        found[y] = found.get(y, "") + html.unescape(text).replace("\xa0", " ")
    return [text.rstrip() for text in found.values()]


def test_the_picture_is_up_to_date() -> None:
    shown = picture.svg()
    assert rows(shown)[-4:][0].startswith("worker/0")
    assert rows(picture.PICTURE.read_text(encoding="utf-8")) == rows(shown), "scripts/picture --draw"
    assert picture.PICTURE.read_text(encoding="utf-8") == shown, "scripts/picture --draw"
