"""The code of each finding, and what it is about in a few words; docs/lint.md has a section for each."""

from __future__ import annotations

from collections.abc import Mapping

CONFIG, LEGACY, EARLY, BATCH, SAVING, FILES, SERVERS, UNUSED, ALONE, BACKUP = (
    f"O{number}" for number in range(101, 111)
)
PROGRAM, PACKAGES, PATH = "O201", "O202", "O203"  # found on the hosts
PROXY, EPHEMERAL, UNNAMED = "O301", "O302", "O303"

CODES: Mapping[str, str] = {
    CONFIG: "the program writes TF_CONFIG",
    LEGACY: "the program undoes the TF_USE_LEGACY_KERAS that the run needs",
    EARLY: "something computes before the strategy is made",
    BATCH: "a batch that the workers cannot share equally",
    SAVING: "several tasks write one path",
    FILES: "fewer files of data than workers",
    SERVERS: "every task makes a ParameterServerStrategy",
    UNUSED: "a strategy that nothing uses",
    ALONE: "several workers, and nothing that joins them",
    BACKUP: "restarts, and a backup that one task alone keeps",
    PROGRAM: "a host without the command's program",
    PACKAGES: "a host whose R lacks what the script loads",
    PATH: "a path that only this machine has",
    PROXY: "gRPC follows a proxy",
    EPHEMERAL: "a task port in the range of outgoing connections",
    UNNAMED: "an [env] without the TensorFlow that the program imports",
}
