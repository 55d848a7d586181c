"""Calls a verb while a host lies, and checks the controller and the other hosts afterwards."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests import verbs
from tests.hostile.ground import LONG, RUN_ID, SHORT, Ground, Played
from tests.hostile.row import Row, Verb
from tests.processes import bearers

_FAST = ("--skip-preflight", "--no-validate")
_FAILS_ONCE = (
    "mkdir -p kept; case $PWD in *liar*) echo other; esac > kept/out; "  # so that there is something to copy
    "test -e second || { touch second; "
    # Both get this far before one fails: a task stopped earlier would fail in the second attempt.
    "both=../../../../../*/work/runs/$ORCHESTRATE_RUN/work/second; "
    "until [ $(ls $both | wc -l) = 2 ]; do sleep 0.02; done; exit 7; }"
)
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")


def play(ground: Ground, row: Row) -> Played:
    """Call the row's verb; anything it starts must end, or `wrong` reports it."""
    with ground.elsewhere() as away:
        run = ground.launch("others.toml", ground.state, LONG, "--detach") if row.verb is Verb.STOP else ""
        if run:
            ground.wait_until_told(run)
            verbs.kill_keeper(ground.folder_of(run))
        state = away if row.verb in _AWAY else ground.state
        before = verbs.runs_in(state)
        # Otherwise there is nothing to send; too large to be sent along with a request.
        ground.fresh.write_text(row.id * (100_000 // len(row.id)))
        ground.liar.lie(row.lie)
        try:
            called = verbs.call(_words(ground, row.verb, run or row.run), ground.project, state)
        finally:
            ground.liar.be_honest()
        made = frozenset(verbs.runs_in(state) - before)
        for one in made:
            verbs.wait_for_keeper(state / "orchestrate" / "runs" / one)
        logs = [state / "orchestrate" / "runs" / one / "debug.log" for one in made]
        output = [called.out, called.err, *(log.read_text() for log in logs if log.exists())]
        strange = _strange(away) if away.exists() else []
        about = (run,) if run else tuple(made - {ground.living})
        return Played(called, "\n".join(output), about, strange)


_AWAY = (Verb.STOP, *(verb for verb in Verb if verb.startswith("away_")))


def _words(ground: Ground, verb: Verb, run: str) -> Sequence[str]:
    others = ("--hosts", "others.toml")
    match verb:
        case Verb.PREFLIGHT | Verb.CLEAN:
            return (verb, *others)
        case Verb.LAUNCH:
            return (verb, *_FAST, *others, "--", "sh", "-c", SHORT)
        case Verb.RESTART:
            return ("launch", *_FAST, "--max-restarts", "1", *others, "--", "sh", "-c", _FAILS_ONCE)
        case Verb.STATUS | Verb.STACKS:
            return (verb, ground.living)
        case Verb.EXEC:
            return (verb, "--only", "liar", "--", "echo", "hi")
        case Verb.PULL:
            return (verb, "--all", "--to", "pulled", ground.over, "kept")
        case Verb.PUSH:
            (ground.data / "train").write_bytes(os.urandom(5 << 20))  # two pieces, one per host
            return (verb, *others, str(ground.data))
        case Verb.SETUP:
            return (verb, "--hosts", "env.toml")
        case Verb.STOP:
            return (verb, "--now", *others, run)
        case Verb.AWAY_STATUS | Verb.AWAY_STACKS:
            return (verb.removeprefix("away_"), ground.living)
        case Verb.AWAY_TAIL:
            return ("tail", "--no-follow", ground.living)
        case Verb.AWAY_MADE_UP:
            return ("tail", run)
        case Verb.AWAY_STOP_MADE_UP:
            return ("stop", "--now", run)
        case Verb.AWAY_PULL:
            return ("pull", "--all", "--to", "pulled", ground.living, "kept")


def wrong(ground: Ground, row: Row, played: Played) -> str:
    """Return what is not as it must be; "" if everything is."""
    shutil.rmtree(ground.project / "pulled", ignore_errors=True)
    after = ground.snapshot()
    changed = {name for name in {*after, *ground.before} if after.get(name) != ground.before.get(name)}
    called = played.called
    lines = [*called.out.splitlines(), *called.err.splitlines()]
    errors = [line for line in lines if line.startswith("error:")]
    warned = [line for line in lines if re.match(r"warning: (no stacks from liar|liar: no answer)", line)]
    checks = {
        f"changed on the controller: {sorted(changed)}": changed,
        "something of a node was run on the controller": ground.canary.exists(),
        f"made {played.strange}": played.strange,
        f"ended with {called.status}, not {row.status}": called.status != row.status,
        "a bug": "a bug in orchestrate" in played.text,
        "a traceback": "Traceback" in played.text,
        "unsafe text": any(map(_UNSAFE.search, lines)),
        "a host's word as our advice": _advised(lines),
        f"{len(errors)} errors": not _fitting(row, len(errors), len(warned)),
        f"does not say {row.words!r}": row.words not in played.text,
        "tasks of another run ended": set(bearers(ground.living)) != ground.bystanders,
        "something of the run lives": not _ended(ground, played),
    }
    found = [what for what, is_so in checks.items() if is_so]
    return "; ".join(found) + f"\n{played.text[-4000:]}" if found else ""


def _fitting(row: Row, errors: int, warnings: int) -> bool:
    """Check for one error, or the message of a verb that continues without the host; restarts repeat it."""
    most = 3 if row.verb is Verb.RESTART else 1
    if row.verb in (Verb.EXEC, Verb.CLEAN) and row.status == 1:  # a finding, not an error of ours
        return errors <= most
    return errors <= most and (row.status == 0 or errors + warnings > 0)


def _advised(lines: Sequence[str]) -> bool:
    """Return whether a command from a host appears unquoted after `try:`."""
    ours = False
    for line in lines:
        ours = line.startswith("  try:") or (ours and line.startswith("      "))
        bare = re.sub("'[^']*'", "", line)
        if ours and ("evil" in bare or "$(touch" in bare):
            return True
    return False


def _ended(ground: Ground, played: Played) -> bool:
    try:
        verbs.until("nothing of the run lives", lambda: not any(map(bearers, played.about)))
        verbs.until("its ports are free", lambda: not ground.holds_ports())
    except AssertionError:
        return False
    return True


def _strange(state: Path) -> list[str]:
    """Return the contents of a formerly empty state folder other than run folders."""
    names = [str(path.relative_to(state)) for path in state.glob("*")]
    names += [str(path.relative_to(state)) for path in state.glob("*/*")]
    names += [str(path.relative_to(state)) for path in state.glob("*/runs/*")]
    ours = ("orchestrate", "orchestrate/runs", "orchestrate/runs/.new")
    return [one for one in names if one not in ours and not _is_run(one)]


def _is_run(name: str) -> bool:
    return bool(RUN_ID.fullmatch(name.rpartition("/")[2]))
