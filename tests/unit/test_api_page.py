"""The reference in docs/api.md is made of the API's docstrings; --update-golden writes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import orchestrator
from orchestrator import api
from tests import golden

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HEAD, END = "| name | is |\n|---|---|\n", "\n\n"
HOSTS = inspect.get_annotations(api.Hosts)


def called(name: str, made: Callable[..., object]) -> str:
    """A call as one writes it, with every option by its name."""
    words: list[str] = []
    for one in inspect.signature(made).parameters.values():
        if one.kind is one.VAR_KEYWORD:  # the options of a TypedDict, its own first
            kind = api.LaunchOptions if "LaunchOptions" in str(one.annotation) else api.Hosts
            words += [f"{key}=" for key in dict.fromkeys([*inspect.get_annotations(kind), *HOSTS])]
        elif one.name != "self":
            bare = one.default is one.empty or one.default in (None, (), False)
            default = "" if bare else repr(one.default)
            star, equals = (
                "*" if one.kind is one.VAR_POSITIONAL else "",
                "=" if one.kind is one.KEYWORD_ONLY else "",
            )
            words.append(f"{star}{one.name}{equals}{default}")
    return f"{name}({', '.join(words)})"


def rows() -> Iterator[str]:
    for name in sorted(orchestrator.__all__, key=lambda name: (name[0].isupper(), name)):
        made = getattr(orchestrator, name)
        if inspect.isfunction(made):
            yield row(called(name, made), made)
        elif made is orchestrator.RunHandle:
            yield row(name, made)
            for key, member in vars(made).items():
                if isinstance(member, property) and not key.startswith("_"):
                    yield row(f".{key}", member)
                elif inspect.isfunction(member) and not key.startswith("_"):
                    yield row(called(f".{key}", member), member)
        elif inspect.isclass(made):
            fields = ", ".join(getattr(made, "__struct_fields__", ()))
            yield row(f"{name}({fields})" if fields else name, made)


def row(name: str, made: object) -> str:
    text = inspect.getdoc(made)
    assert text, f"{name} has no docstring"
    shown = text.partition("\n\n")[0] if inspect.isclass(made) else text
    return f"| `{name}` | {' '.join(shown.split())} |"


def test_the_reference_is_made_of_the_docstrings() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(HEAD)
    _, _, after = rest.partition(END)
    golden.matches_golden("../../docs/api.md", f"{before}{HEAD}{chr(10).join(rows())}{END}{after}")
