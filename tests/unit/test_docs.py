"""The pages match the code: keys, options, events, checks, messages, links."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
from msgspec.structs import fields

import orchestrator
from orchestrator import api, checks
from orchestrator.cli.args import parser
from orchestrator.config import tables
from orchestrator.config.load import parse
from orchestrator.envs import Platform, fitting, resolve
from orchestrator.errors import ExitStatus
from orchestrator.events import Event, FailureKind, Stamped, TaskExited, TaskProgressed, TaskStarted, encode
from orchestrator.model import EnvironmentPlan, Host, Job, Role
from tests import golden, picture
from tests.golden import matches_golden

ROOT = Path(__file__).parents[2]
DOCS = [*(ROOT / "docs").glob("*.md")]
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *sorted(DOCS)]
# Verbs whose options are documented on a different page.
PAGE_OF_VERB = {"push": "data", "stacks": "hangs"}
PAGE_OF_VERB |= dict.fromkeys(("tail", "status", "pull", "stop"), "runs")
VERBS = parser.build(*parser.VERBS)[1]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """Return the text under a heading, up to the next heading of any level."""
    return re.split(r"^#+ ", text.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> Iterator[list[str]]:
    """Return the rows of its tables, without headers; `\\|` is a bar within a cell."""
    for line, following in pairwise([*text.splitlines(), ""]):
        if line.startswith("|") and not line.startswith("|-") and not following.startswith("|-"):
            yield [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def first_codes(text: str) -> list[str]:
    """Return everything in backquotes in the first column."""
    return [code for row in rows(text) for code in re.findall(r"`([^`]+)`", row[0])]


# --- hosts.toml ---

TABLES = [("Keys of `[[host]]`", tables.HOST_KEYS, Host), ("Keys of `[job]`", tables.JOB_KEYS, Job)]


@pytest.mark.parametrize(("title", "keys", "kind"), TABLES)
def test_every_key_is_documented_with_its_default(title: str, keys: dict[str, object], kind: type) -> None:
    table = {row[0].strip("`"): row for row in rows(section(page("inventory"), title))}
    assert list(table) == list(keys)
    for field in fields(kind):
        if field.name == "job":  # of Slurm, not a key
            continue
        cell = table[field.name][2]
        written = cell.startswith("`") and cell not in ("`{}`", "`[]`", '`"/var/tmp/orchestrate-<uid>"`')
        if written and field.name != "ssh_config":
            assert json.loads(cell.strip("`")) == field.default, field.name


def test_every_other_key_and_role_is_on_the_inventory_page() -> None:
    text = page("inventory")
    assert list(tables.HOST_KEYS)[3:] == list({**tables.DEFAULTS_KEYS, **tables.ROLE_KEYS})
    assert "Keys from `user` to `container_engine` are also valid under `[defaults]`" in text
    assert "`[role.NAME]`" in text
    assert all(f'`"{role.value}"`' in text for role in Role)
    assert first_codes(section(text, "Keys of `[data]`")) == list(tables.DATA_KEYS)
    assert first_codes(section(text, "Keys of `[export.kubernetes]`")) == list(tables.KUBERNETES_KEYS)


# --- the command line ---


def options(verb: str) -> list[str]:
    hidden = {"-h", "--help", "--debug"}
    every = [action.option_strings for action in VERBS[verb]._actions if action.option_strings]
    return [
        next((name for name in names if name.startswith("--")), names[0])
        for names in every
        if not hidden & set(names)
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_documented_on_the_page_of_its_verb(verb: str) -> None:
    text = page(PAGE_OF_VERB.get(verb, verb))
    assert f"orchestrate {verb}" in text
    missing = [option for option in options(verb) if f"`{option}" not in text]
    assert not missing, verb
    assert "`--debug`" in page("troubleshooting")


def test_documented_exit_statuses_match_the_code() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [int(row[0]) for row in rows(section(readme, "Exit status"))] == sorted(map(int, ExitStatus))


# --- events, checks, messages ---


def test_every_event_failure_and_check_is_in_its_table() -> None:
    events = page("events")
    assert first_codes(events.partition("\n## ")[0]) == [cls.__name__ for cls in get_args(Event)]
    kinds = first_codes(section(events, "What a failure is called"))
    assert set(kinds) == set(FailureKind) - {FailureKind.NONE}
    checked = first_codes(section(page("preflight"), "The checks"))
    assert set(checked) == {check.name for check in checks.TABLE}


def test_every_explained_message_exists_in_the_code() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "orchestrator").rglob("*.py"))
    joined = re.sub(r'"\s*f?"', "", sources)
    text = page("troubleshooting")
    explained = first_codes(section(text, "Reaching a host")) + first_codes(
        section(text, "Before the tasks start")
    )
    assert len(explained) > 15
    for message in explained:
        for part in re.split(r"\.\.\.|\b2222\b|\bNAME\b|'?\S*train\S*|\bnfs\b|\bpython3\b", message):
            assert part.strip() in joined, message


# --- links ---


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to headings."""
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def links() -> Iterator[tuple[Path, str]]:
    for file in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text(encoding="utf-8")):
            if not link.startswith(("https://", "http://", "mailto:")):
                yield file, link


@pytest.mark.parametrize(
    ("file", "link"), sorted(set(links())), ids=lambda part: str(part).rpartition("/")[2]
)
def test_every_relative_link_resolves(file: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = file.parent / path if path else file
    assert target.exists()
    assert not anchor or anchor in anchors(target.read_text(encoding="utf-8"))


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [file.name for file in PAGES[1:] if f"({file.relative_to(ROOT)}" not in readme]
    assert not missing


def test_the_pages_stay_short() -> None:
    assert sum(len(page.read_text().split()) for page in DOCS) <= 29_120


# --- Packages that docs/setup.md names per framework are only resolved: their wheels are too large ---

PAGE = (Path(__file__).parents[2] / "docs" / "setup.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+) \| `(packages = [^`]+)`[^|\n]*\|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("title", ROWS)
def test_an_example_resolves_and_has_wheels(title: str) -> None:
    table = parse(f'[[host]]\nssh = "a"\n[env]\n{ROWS[title]}\n').environment
    assert table is not None
    lock = resolve(table)
    assert set(lock.names) >= {re.split(r"\W", name)[0] for name in table.packages} - {"tensorflow"}
    assert fitting(lock, Platform("x86_64", "glibc 2.36"), EnvironmentPlan("")).minors


@pytest.mark.parametrize("minor", [12, 14])
def test_wheels_for_the_requested_python_do_not_depend_on_the_controllers(minor: int) -> None:
    table = parse(f'[[host]]\nssh = "a"\n[env]\npackages = ["numpy"]\npython = "3.{minor}"\n').environment
    assert table is not None
    fit = fitting(resolve(table), Platform("x86_64", "glibc 2.36"), EnvironmentPlan("", table.python))
    assert minor in fit.minors


def test_every_row_of_packages_is_read() -> None:
    assert len(ROWS) == 5


# --- The reference in docs/api.md is generated from the API's docstrings by --update-golden ---

REFERENCE = Path(__file__).parents[2] / "docs" / "api.md"
HEAD, END = "| name | is |\n|---|---|\n", "\n\n"
HOSTS = inspect.get_annotations(api.Hosts)


def called(name: str, made: Callable[..., object]) -> str:
    """Return a call as users write it, with every option by name."""
    words: list[str] = []
    for one in inspect.signature(made).parameters.values():
        if one.kind is one.VAR_KEYWORD:  # the keys of a TypedDict, its own first
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


def reference() -> Iterator[str]:
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


def test_the_reference_is_generated_from_the_docstrings() -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    before, _, rest = page.partition(HEAD)
    _, _, after = rest.partition(END)
    golden.matches_golden("../../docs/api.md", f"{before}{HEAD}{chr(10).join(reference())}{END}{after}")


# --- docs/events.schema.json, generated by --update-golden, and the output of `--json` ---


def schema() -> dict[str, Any]:
    kinds = get_args(Event)
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for kind in kinds:
        part = parts[kind.__name__]
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])  # as Python 3.13 does by itself
        fields = {"at": {"type": "number"}, **part["properties"]}
        if "attempt" in fields:
            fields["attempt"] = {"type": ["integer", "string"]}  # as `encode` has it
        part |= {"properties": fields, "required": list(fields)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of orchestrate: a line of --json",
        "oneOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds],
        "$defs": parts,
    }


def test_the_documented_schema_matches_the_events() -> None:
    matches_golden("../../docs/events.schema.json", json.dumps(schema(), indent=1) + "\n")


@pytest.mark.parametrize(
    "event",
    [
        TaskStarted("worker/0", "gpu-01", "1", 77),
        TaskStarted("worker/0", "gpu-01", "validation", 77),
        TaskProgressed("worker/0", 3, None, 2.5),
        TaskExited("worker/0", "gpu-01", "1", None, 9, "", 1.0, 2.0, stopped=True),
    ],
)
def test_events_match_the_schema(event: Event) -> None:
    line = json.loads(encode(Stamped(1.0, event)))
    jsonschema.validate(line, schema())
    for broken in ({**line, "event": "Nothing"}, {**line, "at": "now"}, {"at": 1.0, "event": line["event"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema())


# --- README's picture matches the current live display ---


def test_the_picture_is_up_to_date() -> None:
    assert picture.PICTURE.read_text(encoding="utf-8") == picture.svg(), "scripts/picture --draw"
