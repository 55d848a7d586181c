"""A fix keeps the options of the line that it mends."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.args.parser import parse
from orchestrator.cli.desk.retyped import keep_line
from orchestrator.errors import ElsewhereError, UsageError

PLAIN = "`orchestrate launch -- train.py 2`"


@pytest.mark.parametrize(
    ("line", "hint", "kept"),
    [
        ("launch", PLAIN, PLAIN),
        (
            "launch --only gpu-[01-02] --dry-run",
            PLAIN,
            "`orchestrate launch --only 'gpu-[01-02]' --dry-run -- train.py 2`",
        ),
        ("rehearse -n 2", PLAIN, "`orchestrate rehearse -n 2 -- train.py 2`"),
        (
            "launch --name x",
            "`orchestrate launch --env A=1 -- x`",
            "`orchestrate launch --name x --env A=1 -- x`",
        ),
        (
            "launch --hosts lab.toml --code=. --name x",
            "`cd ..`, then `orchestrate launch -- x.py`",
            "`cd ..`, then `orchestrate launch --name x --hosts HERE/lab.toml -- x.py`",
        ),
        (
            "launch --hosts a,b",
            "`cd ..`, then `orchestrate launch -- x.py`",
            "`cd ..`, then `orchestrate launch --hosts a,b -- x.py`",
        ),
        ("launch --name x", "write it as UTF-8", "write it as UTF-8"),
    ],
)
def test_the_hint_has_them(
    line: str, hint: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.toml").write_text("")
    ours = parse([*line.split(), "--", "x"]).ours
    source = "lab.toml" if "lab.toml" in line else "--hosts"
    kind = ElsewhereError if "cd .." in hint else UsageError
    found = keep_line(kind("what", why="why", hint=hint), ours, source)
    assert (found.what, found.why) == ("what", "why")
    assert found.hint == kept.replace("HERE", str(tmp_path.resolve()))
