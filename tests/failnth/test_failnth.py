"""One call fails in each verb: a sample of scripts/fail-nth, and its earlier findings."""

import errno
import os
import shutil
from collections.abc import Iterator

import pytest

from orchestrator.rehearsal import Cluster
from tests.failnth.ground import VERBS, Failure, Ground, Verb, cases, counts, play

_SAMPLE = 150  # one in this many cases of a verb is played


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if shutil.which("cc") is None:
        if os.environ.get("CI"):
            pytest.fail("a C compiler is part of CI: `apt install gcc libc6-dev`")
        pytest.skip("there is no C compiler: apt install gcc libc6-dev")
    with Cluster(2) as cluster:
        yield Ground(cluster, tmp_path_factory.mktemp("failnth"))


# Verb, failure, and the exit status.
FOUND = (
    ("runs", Failure("open", errno.EMFILE, 1, "command", at="/dev/null"), 5),
    ("runs", Failure("open", errno.EMFILE, 1, "command", at="/orchestrate/runs"), 5),
    ("launch", Failure("open", errno.EMFILE, 4, "keeper", on=True), 5),
    ("launch", Failure("open", errno.EMFILE, 1, "keeper", at="/worker_entry", on=True), 5),
    ("launch", Failure("open", errno.ENOSPC, 1, "command", at=".request.json"), 5),
    ("launch", Failure("read", errno.EIO, 1, "supervisor", at="/state.json"), 1),
    ("exec", Failure("read", errno.EIO, 1, "command", at="/known_hosts"), 5),
    ("exec", Failure("open", errno.EMFILE, 1, "child", at="/dev/null"), 3),
    ("init", Failure("thread", errno.EAGAIN, 2, "command"), 5),
    ("preflight", Failure("thread", errno.EAGAIN, 1, "child"), 3),
    ("preflight", Failure("read", errno.EIO, 1, "command", at="/known_hosts"), 5),
)


@pytest.mark.parametrize(("verb", "failure", "status"), FOUND, ids=str)
def test_earlier_findings_stay_fixed(ground: Ground, verb: str, failure: Failure, status: int) -> None:
    (called,) = (one for one in VERBS if one.name == verb)
    outcome, wrong = play(ground, called, failure)
    assert not wrong, wrong
    assert outcome.hits
    assert outcome.status == status


# Each case of `setup` creates an environment.
@pytest.mark.parametrize("verb", [one for one in VERBS if one.name != "setup"], ids=lambda one: one.name)
def test_a_sample_of_cases(ground: Ground, verb: Verb) -> None:
    chosen = list(cases(counts(ground, verb), 2))
    for failure in chosen[len(verb.name) :: _SAMPLE]:
        _, wrong = play(ground, verb, failure)
        assert not wrong, f"{failure}: {wrong}"
