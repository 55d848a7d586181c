"""The embedded cluster: real private sshd's on loopback, for `rehearse`, tests and benchmarks."""

from orchestrator.rehearsal.cluster import Cluster
