"""The protocol of controller and node: every request and reply as a type with bounds. Pure.

The controller's side only; a node is shipped with the standard library alone and takes plain dicts.
"""

from orchestrator.wire.command import CommandEnd, Exec, ExecEnd, Pipe
from orchestrator.wire.fields import Reply, printable
from orchestrator.wire.files import FilesGet, FilesList, Parts
from orchestrator.wire.glance import (
    Measured,
    StackProcess,
    Stacks,
    StacksOf,
    TaskStacks,
    TaskVitals,
    VitalsAsk,
)
from orchestrator.wire.hello import Beats, Hello, Ping
from orchestrator.wire.machine import (
    Busy,
    Conflict,
    EnvFind,
    EnvLook,
    EnvMade,
    EnvMake,
    EnvProgress,
    Facts,
    Fingerprint,
    Imported,
    Imports,
    Interface,
    Lease,
    Leased,
    Lessee,
    Listen,
    Listening,
    MachineFacts,
    Probe,
    Probed,
    Probes,
    ProbeTarget,
    ShareClean,
    ShareRead,
    ShareWrite,
    Unlisten,
)
from orchestrator.wire.request import (
    HEAD,
    Failure,
    Nothing,
    ProtocolError,
    Request,
    answer,
    header,
    read,
)
from orchestrator.wire.store import (
    StoreBegin,
    StoreBegun,
    StoreDrop,
    StoreHave,
    StoreHeld,
    StoreLook,
    StoreLooked,
    StorePut,
    StoreSeal,
    StoreSource,
    StoreState,
)
from orchestrator.wire.stream import AgentStream
from orchestrator.wire.tasks import (
    NEWS_PAYLOAD,
    Follow,
    From,
    Keep,
    Keeping,
    LogNews,
    News,
    Oom,
    ReportNews,
    Runs,
    Spec,
    Start,
    Started,
    StateNews,
    States,
    Stop,
    Stopped,
    Sweep,
    TaskPhase,
    TaskRecord,
    TaskStatus,
    Unfollow,
    Unknown,
    Want,
    news,
)
from orchestrator.wire.tidy import Clean, Cleaned, CleanLook, GpuHeld, GpuProcess, Orphan
from orchestrator.wire.work import Had, JobNeeds, Work, WorkMake
