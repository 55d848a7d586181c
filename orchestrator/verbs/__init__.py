"""The verbs: from a request to its result and events, without a terminal."""

from collections.abc import Callable

from orchestrator.errors import OrchestrateError


class Caller:
    """Receives a verb's notices and answers its questions; this default drops notices and has no answers."""

    asks: Callable[[str], str] | None = None  # asks for a passphrase; None: keys that need one are not tried
    masters = False  # OpenSSH may prompt on our terminal

    def tell(self, *lines: str) -> None:
        """Receive lines about the work."""

    def warn(self, error: OrchestrateError) -> None:
        """Receive an error that does not end the verb."""
        self.tell(f"warning: {error.in_one_line}")
