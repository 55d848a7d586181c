"""Nothing that we print contains a control or invisible character, whatever its source."""

import ast
import enum
import io
import re
import types
import unicodedata
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

import orchestrator.cli
from orchestrator import events as ev
from orchestrator import wire
from orchestrator.cli.desk import out
from orchestrator.errors import HostError
from orchestrator.events import Event, Stamped
from orchestrator.render import Jsonl
from orchestrator.render.board import region
from orchestrator.render.errors import report
from orchestrator.render.live import Paint
from orchestrator.render.plain import Plain
from orchestrator.render.preflight import preflight_table
from orchestrator.render.tables import RunRow, runs_table, status_table
from orchestrator.render.words import say
from orchestrator.run.view import View, replay
from orchestrator.verbs.status import StatusReport
from tests.unit.plans import host, make

ODD = (
    "\x00\x07\x08\r\x0b\x1b\x7f\x85\x9b\x9d\u2028\u2029\u202a\u202e\u2066\u2069\u200b\u200c\u200d\u200e"
    "\u200f\u061c\u00ad\u2060\ufeff\ufff9\u180e\ufe0f\u034f\u3164\U000e0001\U000e0041\U000e0100\ud800\udfff"
)
# Mixed with ASCII only, where invisible characters have no use.
SEQUENCES = ["\x1b[2J", "\x1b]0;t\x07", "\x1b[31m", "\n", "\x9b2J", "\x1b["]
hostile = st.lists(st.sampled_from([*ODD, *"abc .:-/", *SEQUENCES]), max_size=8).map("".join)
COLOUR = re.compile("\x1b\\[[0-9;:]*m")


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any value of an event's field."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, inner))
    if origin is tuple:
        if inner[-1] is ...:
            return st.lists(values(inner[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(hostile, hostile, max_size=2)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    known: dict[Any, st.SearchStrategy[Any]] = {
        str: hostile,
        bool: st.booleans(),
        int: st.integers(-5, 10**6),
        float: st.floats(-5, 1e6),
        type(None): st.none(),
    }
    return known[hint]


def of_class(cls: type[Event]) -> st.SearchStrategy[Event]:
    fields = {name: values(hint) for name, hint in get_type_hints(cls, vars(ev)).items()}
    tasks = st.sampled_from(["worker/0", "worker/1", "chief/0"])
    if "task" in fields:
        fields["task"] = tasks
    if cls in (ev.RunPlanned, ev.AttemptPlanned):
        fields["tasks"] = st.lists(st.tuples(tasks, hostile), max_size=2).map(tuple)
    if cls is ev.LogLine:  # several lines arrive as one if none needs a change
        line = hostile.map(lambda text: text.replace("\n", " "))
        fields["text"] = st.one_of(line, st.just("step 1\nstep 2"))
    return st.builds(cls, **fields)


stories = st.lists(st.one_of(*map(of_class, get_args(Event))), min_size=1, max_size=8)
SLOW = settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))


def is_safe(text: str) -> bool:
    bare = COLOUR.sub("", text)
    return not any(
        letter not in "\n\t"
        and (letter in ODD or unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"})
        for letter in bare
    )


def seen(story: list[Event]) -> View:
    return replay([Stamped(1.0, event) for event in story])


@SLOW
@given(stories)
def test_plain_lines_and_json_are_safe(story: list[Event]) -> None:
    stdout, stderr, json = io.StringIO(), io.StringIO(), io.StringIO()
    plain, lines = Plain(stdout, stderr), Jsonl(json)
    for event in story:
        plain.handle(Stamped(1.0, event))
        lines.handle(Stamped(1.0, event))
    assert is_safe(stdout.getvalue() + stderr.getvalue() + json.getvalue())
    assert "\x1b" not in stdout.getvalue() + stderr.getvalue() + json.getvalue()


@SLOW
@given(stories)
def test_the_live_display_is_safe(story: list[Event]) -> None:
    paint, view = Paint(), seen(story)
    paint.learn(view)
    texts = [paint.line(line, "red") for event in story for line in say(view, event)]
    texts += [paint.line(line, "") for event in story for line in say(view, event)]
    texts += [row for event in story if isinstance(event, ev.LogLine) for row in paint.lines_of(event)]
    texts += [Text(row, style) for row, style in region(view, 2.0, 20, 200)]
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=500)
    with console.capture() as shown:
        for text in texts:
            console.print(text, soft_wrap=True)
    assert is_safe(shown.get())


@SLOW
@given(stories, hostile, hostile)
def test_tables_and_errors_are_safe(story: list[Event], word: str, other: str) -> None:
    view, plan = seen(story), make(host("a"))
    state = {"state": "running", "pid": 1, "exit_code": None, "exit_signal": None, "message": other}
    status = {"attempt": "1", "task": "worker/0", "state": state, "alive": True}
    states = {("1", "worker/0"): (word, wire.read(status, wire.TaskStatus, "a status"))}
    for json in (False, True):
        lines = runs_table([RunRow(plan, view, kept=False)], json=json)
        lines += status_table(StatusReport(plan, view, states, {word: other}, False, word), json=json)
        assert is_safe(printed(*lines, json=json))
    checks = [event for event in story if isinstance(event, ev.CheckReported)]
    pairs = [event for event in story if isinstance(event, ev.PairReported)]
    assert is_safe("".join(preflight_table(checks, pairs)))
    stream = io.StringIO()
    report(HostError(word, other, kind="x", why=word, hint=other), stream)
    assert is_safe(stream.getvalue())


def printed(*lines: str, json: bool) -> str:
    """Return what a verb prints for its lines."""
    stream = io.StringIO()
    out.show(stream, lines, json=json)
    return stream.getvalue()


def test_verbs_never_call_print() -> None:
    folder = Path(orchestrator.cli.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id == "print"), f"{path.name}:{called.lineno}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_word_is_broken_at_the_edge_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    out.tell("  gpu-01  SHA256:0123456789  [127.0.0.2]:34437")
    assert stream.getvalue().split() == ["gpu-01", "SHA256:0123456789", "[127.0.0.2]:34437"]
    assert len(stream.getvalue().splitlines()) == 2
