"""Names from outside: a name, or an error; nothing in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model import Role, TaskId
from orchestrator.names import AttemptName, Digest, NotANameError, RunId, TaskSlug
from orchestrator.store import RunFolder, new_run_id

KINDS = (RunId, AttemptName, TaskSlug, Digest)
NEVER = [
    "",
    ".",
    "..",
    "../../../x",
    "/",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "a" * 300,
    "a/../b",
    None,
    7,
    b"a",
    ["a"],
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", NEVER, ids=repr)
def test_what_is_never_a_name(kind: type[RunId], text: object) -> None:
    with pytest.raises(NotANameError) as caught:
        kind(text)
    assert len(caught.value.what) < 120
    assert caught.value.what.isprintable()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((RunId, text) for text in ("a\n", "\na", "a b", ".a", "-rf", "ä", "a" * 65, "a\x1b[31m")),
        *((AttemptName, text) for text in ("0", "01", "-1", "1.", "²", "1234567", "validate-", "1-1", "a")),
        *(
            (TaskSlug, text)
            for text in ("worker", "worker/1", "worker--1", "boss-1", "worker-1.x", "worker-²")
        ),
        *((Digest, text) for text in ("7E" * 16, "7e" * 15, "7e" * 17, "7e" * 16 + "\n")),
    ],
)
def test_what_is_no_name_of_a_kind(kind: type[RunId], text: str) -> None:
    with pytest.raises(NotANameError):
        kind(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RunId, "20261121-010203-abcd"),
        *(
            (AttemptName, text)
            for text in ("1", "12", "validate", "validate-2", "validate-2-1", "validate-again")
        ),
        *((TaskSlug, TaskId(role, 12).slug) for role in Role),
        (Digest, "7e7814ef95a9d780366b43e7c0924365"),
    ],
)
def test_what_is_a_name(kind: type[RunId], text: str) -> None:
    assert kind(text) == text


def test_a_new_run_has_a_name() -> None:
    assert RunId(new_run_id(1.8e9)).startswith("2027")


def test_which_attempt_it_is() -> None:
    assert AttemptName("12").number == 12
    assert AttemptName("validate-2").number is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(text=st.text())
def test_any_text_is_one_component_of_a_path_or_refused(kind: type[RunId], text: str) -> None:
    try:
        name = kind(text)
    except NotANameError:
        return
    assert Path("/root/folder", name).parent == Path("/root/folder")
    assert Path("/root/folder", name).name == text
    assert text not in {".", ".."}


def test_a_folder_of_a_run_gives_no_path_out_of_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, RunId("r1"))
    assert folder.log("1", "worker-0") == tmp_path / "r1" / "logs" / "1" / "worker-0.log"
    for attempt, slug in (("../../x", "worker-0"), ("1", "../x"), ("/x", "worker-0"), ("1", "/x")):
        for path in (folder.log, folder.times, folder.report):
            with pytest.raises(NotANameError):
                path(attempt, slug)


def test_the_ids_that_we_make_are_names() -> None:
    made = new_run_id(1.8e9)
    assert RunId(made) == made
