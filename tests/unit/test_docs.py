"""What the pages promise is what the code has: keys, options, events, checks, messages, links."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import fields

from orchestrator import checks
from orchestrator.cli.args import parser
from orchestrator.config.tables import DATA_KEYS, DEFAULTS_KEYS, HOST_KEYS, JOB_KEYS, KUBERNETES_KEYS
from orchestrator.errors import ExitStatus
from orchestrator.events import Event, FailureKind
from orchestrator.model import Host, Job, Role

ROOT = Path(__file__).parents[2]
DOCS = [*(ROOT / "docs").glob("*.md")]
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *sorted(DOCS)]
# Of verbs whose options are not on the page of their name.
PAGE_OF_VERB = {"push": "data", "stacks": "hangs"}
PAGE_OF_VERB |= dict.fromkeys(("tail", "status", "pull", "stop"), "runs")
VERBS = parser.build(*parser.VERBS)[1]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    return re.split(r"^#+ ", text.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> Iterator[list[str]]:
    """The rows of its tables, without their heads; `\\|` is a bar within a cell."""
    for line, following in pairwise([*text.splitlines(), ""]):
        if line.startswith("|") and not line.startswith("|-") and not following.startswith("|-"):
            yield [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def first_codes(text: str) -> list[str]:
    """All that stands in backquotes in the first column."""
    return [code for row in rows(text) for code in re.findall(r"`([^`]+)`", row[0])]


# --- hosts.toml ---

TABLES = [("Keys of `[[host]]`", HOST_KEYS, Host), ("Keys of `[job]`", JOB_KEYS, Job)]


@pytest.mark.parametrize(("title", "keys", "kind"), TABLES)
def test_every_key_is_in_the_table_with_its_default(title: str, keys: dict[str, object], kind: type) -> None:
    table = {row[0].strip("`"): row for row in rows(section(page("inventory"), title))}
    assert list(table) == list(keys)
    for field in fields(kind):
        if field.name == "job":  # of Slurm, which is no key
            continue
        said = table[field.name][2]
        written = said.startswith("`") and said not in ("`{}`", "`[]`", '`"/var/tmp/orchestrate-<uid>"`')
        if written and field.name != "ssh_config":
            assert json.loads(said.strip("`")) == field.default, field.name


def test_every_other_key_and_every_role_is_on_the_page_of_the_inventory() -> None:
    text = page("inventory")
    assert list(HOST_KEYS)[3:] == list(DEFAULTS_KEYS)
    assert "Those below `address` may also stand under `[defaults]`" in text
    assert all(f'`"{role.value}"`' in text for role in Role)
    assert first_codes(section(text, "Keys of `[data]`")) == list(DATA_KEYS)
    assert first_codes(section(text, "Keys of `[export.kubernetes]`")) == list(KUBERNETES_KEYS)


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
def test_every_option_is_on_the_page_of_its_verb(verb: str) -> None:
    text = page(PAGE_OF_VERB.get(verb, verb))
    assert f"orchestrate {verb}" in text
    missing = [option for option in options(verb) if f"`{option}" not in text]
    assert not missing, verb
    assert "`--debug`" in page("troubleshooting")


def test_the_exit_statuses_are_those_of_the_code() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [int(row[0]) for row in rows(section(readme, "Exit status"))] == sorted(map(int, ExitStatus))


# --- events, checks, messages ---


def test_every_event_failure_and_check_is_in_its_table() -> None:
    launch = page("launch")
    assert first_codes(section(launch, "JSON")) == [cls.__name__ for cls in get_args(Event)]
    kinds = first_codes(section(launch, "What a failure is called"))
    assert set(kinds) == set(FailureKind) - {FailureKind.NONE}
    checked = first_codes(section(page("preflight"), "The checks"))
    assert set(checked) == {check.name for check in checks.TABLE}


def test_every_message_that_is_explained_is_said_somewhere() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "orchestrator").rglob("*.py"))
    said = re.sub(r'"\s*f?"', "", sources)
    text = page("troubleshooting")
    explained = first_codes(section(text, "Reaching a host")) + first_codes(
        section(text, "Before the tasks start")
    )
    assert len(explained) > 15
    for message in explained:
        for part in re.split(r"\.\.\.|\b2222\b|\bNAME\b|'?\S*train\S*|\bnfs\b|\bpython3\b", message):
            assert part.strip() in said, message


# --- links ---


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings."""
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
def test_every_relative_link_leads_somewhere(file: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = file.parent / path if path else file
    assert target.exists()
    assert not anchor or anchor in anchors(target.read_text(encoding="utf-8"))


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [file.name for file in PAGES[1:] if f"({file.relative_to(ROOT)}" not in readme]
    assert not missing


def test_the_pages_stay_short() -> None:
    assert sum(len(page.read_text().split()) for page in DOCS) <= 32_000
