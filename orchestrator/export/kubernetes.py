"""The manifests of a run for Kubernetes: the code, and a headless Service with an Indexed Job for each role.

A task is a pod. Its working folder is its own: a copy of the code, on the claim if there is one.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import yaml

from orchestrator.diagnosis.ends import essential
from orchestrator.errors import UsageError
from orchestrator.export import common
from orchestrator.model import DEFAULT_PYTHON, Kubernetes, RunPlan
from orchestrator.text import size

Manifest: TypeAlias = dict[str, Any]

_MOST = 1 << 20  # bytes of a ConfigMap
_NAME = 30  # characters of a job's name
_PATIENCE = 900  # seconds that tasks wait for all pods to have an address
_SECRETS = "orchestrate-secrets"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def manifests(plan: RunPlan, table: Kubernetes, code: Mapping[str, bytes], cwd: str) -> list[Manifest]:
    """Return the manifests to apply; `code` maps paths to files, and tasks run in its folder `cwd`."""
    if table.image is None:
        raise UsageError(
            "there is no image for the pods",
            why="it provides Python and the packages of the program",
            hint='write [export.kubernetes] and image = "..." into hosts.toml',
        )
    name = common.name_of(plan, _NAME)
    code = {**code, "orchestrate_rank.py": common.RANK_FILE.read_bytes()}
    keys = _keys(code)
    counts = common.roles(plan)
    jobs = {role: f"{name}-{role}" for role in counts}
    hosts = ",".join(f"{jobs[role]}-[0-{count - 1}].{name}" for role, count in counts.items())
    rank = [DEFAULT_PYTHON, "/orchestrate/orchestrate_rank.py", "--hosts", hosts, "--wait", str(_PATIENCE)]
    rank += ["--roles", ",".join(f"{role}={count}" for role, count in counts.items())]
    volumes = _volumes(name, table, keys)
    specs = {role: _job(role, plan, table, (cwd, *rank), volumes) for role in counts}
    config_map: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", **_named(f"{name}-code", name, table)}
    config_map |= _data(code, keys)
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(name)}
    made = [config_map, {"apiVersion": "v1", "kind": "Service", **_named(name, name, table), "spec": service}]
    for role, spec in specs.items():
        made.append(
            {"apiVersion": "batch/v1", "kind": "Job", **_named(jobs[role], name, table), "spec": spec}
        )
    return made


def text(made: Sequence[Manifest], plan: RunPlan, remarks: Iterable[str]) -> str:
    """Return manifests as a file for reading and applying."""
    name = made[0]["metadata"]["labels"]["app.kubernetes.io/instance"]
    lines = [*remarks, "apply it: kubectl apply --server-side -f FILE; remove it: kubectl delete -f FILE"]
    lines.append("pods get the GPUs of `devices`, and `cpu` and `memory` of [export.kubernetes]")
    if plan.secrets:
        literals = " ".join(f'--from-literal={secret}="${secret}"' for secret in plan.secrets)
        lines.append(f"first: kubectl create secret generic {_SECRETS} {literals}")
    lines.append(
        "a task that fails ends its own Job alone; to start all of them again, delete and apply the file"
    )
    if len(trainers := _trainers(plan)) < len(common.roles(plan)):
        done = " and ".join(f"{name}-{role}" for role in trainers)
        lines.append(f"when {done} {'is' if len(trainers) == 1 else 'are'} complete, delete the others")
    documents = yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return "".join(f"# {line}\n" for line in lines) + "---\n" + documents


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as blocks, and repeats shared values instead of using anchors."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as it is called
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # Parsers disagree on which other characters end a line of a block.
        style = '"' if set(data) & set("\r\x85\u2028\u2029\ufeff") else "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/instance": name, "app.kubernetes.io/managed-by": "orchestrate"}


def _named(name: str, instance: str, table: Kubernetes) -> Manifest:
    namespace = {} if table.namespace is None else {"namespace": table.namespace}
    return {"metadata": {"name": name, **namespace, "labels": _labels(instance)}}


def _keys(paths: Iterable[str]) -> dict[str, str]:
    """Map each path to a key that a ConfigMap accepts."""
    keys: dict[str, str] = {}
    for number, path in enumerate(sorted(paths)):
        key = re.sub(r"^\.+|[^-._a-zA-Z0-9]", "_", path)[-200:]
        keys[path] = f"{number}-{key}" if key in keys.values() else key
    return keys


def _data(code: Mapping[str, bytes], keys: Mapping[str, str]) -> Manifest:
    """Return a ConfigMap's contents: text unchanged, all else in base64; raise UsageError above 1 MiB."""
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    for path, content in sorted(code.items()):
        try:
            data[keys[path]] = content.decode()
        except UnicodeDecodeError:
            binary[keys[path]] = base64.b64encode(content).decode()
    total = sum(len(value.encode()) for value in (*data.values(), *binary.values()))
    if total > _MOST:
        largest = max(code, key=lambda path: len(code[path]))
        raise UsageError(
            f"the code is too large for Kubernetes: {size(total)}, and a ConfigMap holds 1 MiB",
            why=f"the largest file is {largest}, with {size(len(code[largest]))}",
            hint="list data in .orchestrateignore and bring it to the claim; or send less, with --code",
        )
    return {"data": data, **({"binaryData": binary} if binary else {})}


def _volumes(name: str, table: Kubernetes, keys: Mapping[str, str]) -> Manifest:
    rank = "orchestrate_rank.py"
    work = "emptyDir" if table.claim is None else "persistentVolumeClaim"
    own = {} if table.claim is None else {"subPathExpr": f"{name}/$(ROLE)-$(JOB_COMPLETION_INDEX)"}
    items = [{"key": key, "path": path} for path, key in keys.items() if path != rank]
    volumes = [
        {"name": "code", "configMap": {"name": f"{name}-code", "items": items, "defaultMode": 0o555}},
        {"name": "rank", "configMap": {"name": f"{name}-code", "items": [{"key": keys[rank], "path": rank}]}},
        {"name": "work", work: {} if table.claim is None else {"claimName": table.claim}},
    ]
    mounts = [
        {"name": "code", "mountPath": "/code", "readOnly": True},
        {"name": "rank", "mountPath": "/orchestrate", "readOnly": True},
        {"name": "work", "mountPath": "/work", **own},
    ]
    if table.claim is not None:
        mounts.append({"name": "work", "mountPath": "/claim"})
    return {"volumes": volumes, "volumeMounts": mounts}


def _job(role: str, plan: RunPlan, table: Kubernetes, start: Sequence[str], volumes: Manifest) -> Manifest:
    """Return the Indexed Job of a role; `start` is the tasks' folder, and how their command begins."""
    name = common.name_of(plan, _NAME)
    tasks = [task for task in plan.tasks if task.id.role.value == role]
    first = plan.tasks.index(tasks[0])  # a Job counts its own from 0
    hosts = [plan.host(task.host) for task in tasks]
    gpus = common.only((len(host.devices or ()) // host.tasks for host in hosts), "their number of GPUs")
    argv = common.only((task.argv for task in tasks), "their command")
    setup = common.only((task.setup for task in tasks), "their setup")
    # A kubelet makes all files of a volume appear at once through ..data; next to it are only links into it.
    script = f'cp -rL /code/..data/. /work && cd "/work/$0" || exit\n{setup or ""}\nexec "$@"\n'
    limits = {"nvidia.com/gpu": str(gpus or ""), "cpu": table.cpu, "memory": table.memory}
    index = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    env: list[Manifest] = [index, {"name": "ROLE", "value": role}]
    env += [{"name": key, "value": _literal(value)} for key, value in common.environment(tasks).items()]
    env += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": _SECRETS, "key": key}}} for key in plan.secrets
    ]
    container = {
        "name": "task",
        "image": table.image,
        "command": [*(["bash", "-lc"] if setup else ["sh", "-c"]), _literal(script)],
        "args": list(map(_literal, (*start, "--first", str(first), "--", *argv))),
        "env": env,
        "resources": {"limits": {name: amount for name, amount in limits.items() if amount}},
        "volumeMounts": volumes["volumeMounts"],
    }
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": volumes["volumes"]}
    return {
        "completionMode": "Indexed",
        "completions": len(tasks),
        "parallelism": len(tasks),
        "backoffLimit": 0,
        "template": {"metadata": {"labels": _labels(name)}, "spec": {"subdomain": name, **pod}},
    }


def _literal(word: str) -> str:
    """Escape a string for Kubernetes, which expands $(NAME) and reads $$ as $."""
    return word.replace("$", "$$")


def _trainers(plan: RunPlan) -> list[str]:
    """The roles whose success is the run's; the others may serve for ever."""
    tasks = essential([spec.id for spec in plan.tasks], plan.completion)
    return list(dict.fromkeys(task.role.value for task in tasks))
