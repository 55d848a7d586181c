"""Near misses: words that other tools use, and the search for the nearest valid word. Pure."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping

# What people type, who know other tools -> our word; each is read in lower case, with _ for -.
VERBS: Mapping[str, str] = {
    **dict.fromkeys(("ps", "ls", "list", "history", "jobs", "squeue", "queue"), "runs"),
    **dict.fromkeys(("log", "logs", "attach", "follow", "watch", "output", "show"), "tail"),
    **dict.fromkeys(("kill", "cancel", "down", "scancel", "abort", "terminate", "rm_run"), "stop"),
    **dict.fromkeys(("ssh", "sh", "shell", "srun", "cmd", "pdsh"), "exec"),
    **dict.fromkeys(("run", "start", "train", "submit", "up", "sbatch"), "launch"),
    **dict.fromkeys(("doctor", "check", "test", "ping", "lint"), "preflight"),
    **dict.fromkeys(("install", "env", "bootstrap", "provision"), "setup"),
    **dict.fromkeys(("sync", "upload", "rsync", "put"), "push"),
    **dict.fromkeys(("fetch", "download", "get", "scp", "cp"), "pull"),
    **dict.fromkeys(("gc", "prune", "purge", "rm", "cleanup"), "clean"),
    **dict.fromkeys(("state", "info", "inspect", "describe", "top"), "status"),
    **dict.fromkeys(("new", "create", "config", "discover"), "init"),
    **dict.fromkeys(("stack", "dump", "py_spy", "trace"), "stacks"),
    **dict.fromkeys(("tb", "board"), "tensorboard"),
    **dict.fromkeys(("demo", "try", "simulate"), "rehearse"),
    **dict.fromkeys(("slurm", "kubernetes", "k8s"), "export"),
    **dict.fromkeys(("completions", "complete"), "completion"),
    **dict.fromkeys(("version", "_v", "_version"), "--version"),
}
KEYS: Mapping[str, str] = {
    **dict.fromkeys(("gpu", "gpus", "device", "cuda_visible_devices", "gpu_ids"), "devices"),
    **dict.fromkeys(("slots", "slot", "nproc", "nproc_per_node", "processes", "ntasks", "np"), "tasks"),
    **dict.fromkeys(("pip", "conda", "dependencies", "package", "deps", "install"), "packages"),
    **dict.fromkeys(("password", "pass", "passphrase", "key", "key_file", "identity_file"), "identity"),
    **dict.fromkeys(("identityfile", "private_key", "ssh_key", "keyfile", "pem"), "identity"),
    **dict.fromkeys(("host", "hostname", "host_name", "machine", "node", "login", "target"), "ssh"),
    **dict.fromkeys(("ip", "addr", "ip_address", "internal_ip", "private_ip"), "address"),
    **dict.fromkeys(("username", "login_name", "ssh_user", "account"), "user"),
    **dict.fromkeys(("ssh_port", "sshport"), "port"),
    **dict.fromkeys(("master_port", "tf_port", "grpc_port", "train_port"), "task_port"),
    **dict.fromkeys(("type", "task_type", "job_name", "group"), "role"),
    **dict.fromkeys(("interpreter", "python_path", "venv", "virtualenv", "python_bin"), "python"),
    **dict.fromkeys(("dir", "work_dir", "working_dir", "cwd", "remote_dir", "directory"), "workdir"),
    **dict.fromkeys(("environment", "envs", "vars", "variables", "env_vars"), "env"),
    **dict.fromkeys(("cmd", "run", "script", "entrypoint", "program", "main", "args"), "command"),
    **dict.fromkeys(("exclude", "excludes", "ignored"), "ignore"),
    **dict.fromkeys(("retries", "restarts", "max_retries", "restart"), "max_restarts"),
    **dict.fromkeys(("timeout", "hang"), "hang_timeout"),
    **dict.fromkeys(("proxy", "proxyjump", "proxy_jump", "bastion", "jump", "proxycommand"), "ssh_config"),
    **dict.fromkeys(("setup_commands", "pre", "before", "prepare"), "setup"),
    **dict.fromkeys(("index_url", "extra_index_url", "mirror"), "index"),
    **dict.fromkeys(("datasets", "tfds", "data_sets"), "sets"),
    **dict.fromkeys(("path", "files", "folders", "dirs"), "paths"),
}
TABLES: Mapping[str, str] = {
    **dict.fromkeys(
        ("node", "nodes", "machine", "machines", "server", "servers", "worker", "workers"), "host"
    ),
    **dict.fromkeys(("default", "global", "common", "ssh", "all"), "defaults"),
    **dict.fromkeys(("jobs", "launch", "train", "training", "run"), "job"),
    **dict.fromkeys(("environment", "packages", "pip", "python"), "env"),
    **dict.fromkeys(("dataset", "datasets"), "data"),
    **dict.fromkeys(("kubernetes", "k8s"), "export.kubernetes"),
}
# A remark beside the right key, where the key alone would leave a person puzzled.
REMARKS: Mapping[str, str] = {
    "password": "logins are by key, and a password is never stored: `ssh-copy-id` installs the key",
    "pass": "logins are by key, and a password is never stored: `ssh-copy-id` installs the key",
    **dict.fromkeys(
        ("proxy", "proxyjump", "proxy_jump", "bastion", "jump", "proxycommand"),
        "write ProxyJump into ~/.ssh/config, or name another file",
    ),
}
VALUES: Mapping[str, str] = {
    **dict.fromkeys(("master", "coordinator", "leader", "head", "main"), "chief"),
    **dict.fromkeys(("parameter_server", "parameterserver", "param_server", "server"), "ps"),
    **dict.fromkeys(("slave", "trainer", "replica", "node"), "worker"),
    **dict.fromkeys(("eval", "validator", "tester"), "evaluator"),
    **dict.fromkeys(("pytorch", "torchrun", "lightning", "ddp"), "torch"),
    **dict.fromkeys(("tf", "keras", "tf2"), "tensorflow"),
    **dict.fromkeys(("flax",), "jax"),
    **dict.fromkeys(("other", "null", "no"), "none"),
    **dict.fromkeys(("openssh_client", "system"), "openssh"),
}


def nearest(
    word: str, valid: Iterable[str], other: Mapping[str, str] = VALUES, cutoff: float = 0.6
) -> str | None:
    """Return the valid word nearest to `word`: as other tools call it, or by its letters in any case."""
    choices = {choice.lower(): choice for choice in valid}
    plain = word.lower().strip()
    known = other.get(plain.replace("-", "_").replace(" ", "_"))
    if known is not None and known.lower() in choices:
        return choices[known.lower()]
    close = difflib.get_close_matches(plain, choices, n=1, cutoff=cutoff)
    return choices[close[0]] if close else None


def matching(pattern: str, valid: Iterable[str]) -> list[str]:
    """Return the valid words that a pattern of shells means, `gpu-*`; none where it is no pattern."""
    return [word for word in valid if fnmatch.fnmatchcase(word, pattern)] if set(pattern) & {*"*?"} else []
