"""The person at this terminal, as the caller of a verb, and the request in their command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from orchestrator.cli.desk.out import tell
from orchestrator.errors import OrchestrateError
from orchestrator.render import question
from orchestrator.requests import Selection, make
from orchestrator.text import count
from orchestrator.verbs import Caller, inventory

if TYPE_CHECKING:
    from orchestrator.ssh.hostkeys import HostKeyRefused

_T = TypeVar("_T", bound=Struct)


class Person(Caller):
    """Reads stderr, and answers if it is a terminal."""

    def __init__(self, *, yes: bool = False) -> None:
        self._yes = yes
        self.masters = question.can_answer()
        self.asks = question.passphrase if self.masters else None

    def tell(self, *lines: str) -> None:
        tell(*lines)

    def accepts(self, new: Mapping[str, HostKeyRefused], number: int) -> bool:
        """Show new host keys, and ask whether to write them."""
        from orchestrator.ssh.hostkeys import fingerprint, key_type

        tell(f"{count(len(new), 'host')} with a key that is in no known_hosts file:")
        width, keys = max(map(len, new)), count(number, "key")
        for name, refusal in new.items():
            place = refusal.target.key_names[0]
            tell(f"  {name:{width}}  {key_type(refusal.blob)} {fingerprint(refusal.blob)}  {place}")
        if self._yes:
            tell(f"{keys} written to known_hosts, because of --yes")
            return True
        if not question.can_answer():
            tell("cannot prompt without a terminal: `--yes` accepts these keys")
            return False
        tell("Compare the fingerprints with those of the machines' owner (`ssh-keygen -l` there).")
        return question.agrees(f"Write {keys} to known_hosts and continue?", usual=False)

    def agrees(self, what: str) -> bool:
        """Ask for confirmation, or report who has already given it."""
        if not self._yes and question.can_answer():
            return question.agrees(what, usual=True)
        tell(f"{what} {'yes, because of --yes' if self._yes else 'no terminal: `--yes` confirms'}")
        return self._yes

    def warn(self, error: OrchestrateError) -> None:
        from orchestrator.render.errors import block

        tell(*block(error.what, error.why, error.hint, word="warning"))


def selection_of(arguments: argparse.Namespace) -> Selection:
    return make(Selection, vars(arguments))


def request_of(kind: type[_T], arguments: argparse.Namespace, person: Person, **more: object) -> _T:
    """Return a request from the options named like its fields, and the inventory they select."""
    given = {**vars(arguments), **more}
    if "inventory" not in given:
        given["inventory"] = inventory.chosen(selection_of(arguments), person)
    if given.get("env") is not None:
        given["env"] = dict(given["env"])
    return make(kind, given)
