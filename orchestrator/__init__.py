"""SSH-based cluster orchestrator for distributed training: TensorFlow, PyTorch and JAX."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["ClusterError", "Event", "Findings", "HostAnswer", "HostError", "OrchestrateError", "RunError"]
__all__ += ["RunHandle", "Stamped", "UsageError", "execute", "launch", "open", "preflight"]

if TYPE_CHECKING:
    from orchestrator.api import HostAnswer, RunHandle, execute, launch, open, preflight
    from orchestrator.errors import ClusterError, HostError, OrchestrateError, RunError, UsageError
    from orchestrator.events import Event, Stamped
    from orchestrator.phases.preflight import Findings
else:

    def __getattr__(name: str) -> object:
        """Import the API on first use; `orchestrate --help` imports this package too and does not need it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from orchestrator import api  # noqa: PLC0415 - see above

        return getattr(api, name)
