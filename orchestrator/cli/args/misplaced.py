"""Words that stand where nobody takes them: where they belong. Imports nothing heavy."""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from collections.abc import Callable, Sequence

from orchestrator.errors import UsageError

_PROGRAMS = (".py", ".R", ".r", ".sh", ".ipynb")
_HOSTS = ("--only", "--exclude", "--hosts")
_NUMBERED = re.compile(r"(python|pip|perl|php|ruby|lua|gcc|g\+\+|clang)[\d.-]*$")  # programs, not hosts
_LONG_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"


def is_program(word: str) -> bool:
    return word.endswith(_PROGRAMS)


def is_interpreter(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*|Rscript|bash|sh", word) is not None


def behind(words: Sequence[str], command: Sequence[str]) -> str:
    """The command with `words`, which nobody takes, in their place; "" when that is not known."""
    if command:
        return shlex.join([*command, *words])
    at = next((at for at, word in enumerate(words) if is_program(word)), None)
    if at is not None:
        return shlex.join([*words[at:], *words[:at]])
    from orchestrator.sync.builtin import builtin_parser

    known = re.findall(r"(?<=\[)--?[\w-]+", builtin_parser().format_usage())
    name, equals, value = words[0].partition("=")
    meant = difflib.get_close_matches(name, known, 1, cutoff=0.8)
    return shlex.join([meant[0] + equals + value, *words[1:]]) if meant else ""


def kept(ours: Sequence[str], words: Sequence[str]) -> str:
    """The verb and what is read behind it, without `words`: the line that stays as it is."""
    rest, line = list(words), []
    for word in ours:
        if rest and word == rest[0]:
            rest.pop(0)
        else:
            line.append(word)
    return shlex.join(line)


def word(
    words: Sequence[str], ours: Sequence[str], command: Sequence[str], known: Callable[[str], bool]
) -> UsageError:
    """What to say of the first of `words`, which is no option, before the `--` of a verb with a command."""
    verb, first = ours[0], words[0]
    at = ours.index(first)
    option, value = ours[at - 2] if at > 2 else "", ours[at - 1]
    if value.startswith("--"):
        option, _, value = value.partition("=")
    line = f"orchestrate {kept(ours, words)}"
    behind_dashes = f" -- {shlex.join(command)}" if command else ""
    unused = f"orchestrate {verb} has no use for {first!r}"
    if not first.strip("-" + _LONG_DASHES):
        rest = shlex.join([*words[1:], *command])
        why = "two hyphens, --, stand before the command"
        return UsageError(unused, why=why, hint=f"`{line}{' -- ' + rest if rest else ''}`")
    if first[0] in _LONG_DASHES and known(plain := "--" + first.lstrip("-" + _LONG_DASHES)):
        return UsageError(unused, why="an option begins with two hyphens", hint=f"write {plain}")
    hosts = _hosts(words, value) if option in _HOSTS else []
    if hosts:
        names = shlex.quote(",".join([value.strip(","), *(one.strip(",") for one in hosts)]))
        return UsageError(unused, why="commas stand between hosts", hint=f"write {option} {names}")
    hosts = _hosts(words, "") if at == 1 and first[0].isalpha() else []
    following = [*words[len(hosts) :], *command]
    if hosts and following and "--only" not in ours:
        names = shlex.quote(",".join(one.strip(",") for one in hosts))
        line = f"{line} --only {names} -- {shlex.join(following)}"
        return UsageError(unused, why="--only names the hosts", hint=f"`{line}`")
    if option == "--env" and "=" in first:
        why = "--env takes one variable, and may be repeated"
        return UsageError(unused, why=why, hint=f"write --env {shlex.quote(first)}")
    if first.endswith(".toml"):
        where = f"{line} --hosts {shlex.quote(first)}"
        rest = f" -- {shlex.join(words[1:])}" if words[1:] and not command else behind_dashes
        return UsageError(unused, why="--hosts names the inventory", hint=f"`{where}{rest}`")
    if command:
        hint = f"`{line}{behind_dashes}`; a value with spaces needs quotes"
        return UsageError(
            unused, why="what stands before -- are options, and the command follows it", hint=hint
        )
    hint = f"`{line} -- {_as_command(words)}`"
    return UsageError(
        f"put the command after --: {first!r}", why="what stands before it are options", hint=hint
    )


def hosts(words: Sequence[str], ours: Sequence[str]) -> UsageError | None:
    """What to say of them behind a verb that takes no words, where they name hosts or an inventory."""
    names = [word.strip(",") for word in _hosts(words, "")]
    is_file = words[0].endswith(".toml") and len(words) == 1
    if not is_file and ("--only" in ours or len(names) < len(words)):
        return None
    option, value = ("--hosts", words[0]) if is_file else ("--only", ",".join(names))
    return UsageError(
        f"orchestrate {ours[0]} has no use for {words[0]!r}",
        why="--hosts names the inventory" if is_file else "--only names the hosts",
        hint=f"`orchestrate {kept(ours, words)} {option} {shlex.quote(value)}`",
    )


def _hosts(words: Sequence[str], before: str) -> list[str]:
    """Those at the beginning that are sooner hosts than a command: they look like the host before them."""

    def is_host(name: str) -> bool:
        alike = before and re.sub(r"[\d\[\],-]+", "", name) == re.sub(r"[\d\[\],-]+", "", before)
        numbered = re.fullmatch(r"[][\w.,@-]*[\d\]],?", name) and not _NUMBERED.match(name)
        return not name.startswith("-") and bool(alike or numbered)

    return list(itertools.takewhile(is_host, words))


def _as_command(words: Sequence[str]) -> str:
    """The words as a command; of a whole line in quotes those in it, or the shell that reads it."""
    line = words[0]
    if len(words) > 1 or not re.search(r"\s", line):
        return shlex.join(words)
    return shlex.join(["sh", "-c", line]) if re.search(r"[|&;<>$`]", line) else line
