"""Near misses: terms of other tools, and the search for the closest valid word. Pure."""

import difflib
import fnmatch
from collections.abc import Iterable, Mapping


def _table(text: str) -> Mapping[str, str]:
    """Return our term for each term of other tools; a line is ours, then theirs, lower case, _ for -."""
    rows = (line.split() for line in text.strip().splitlines())
    return {other: ours for ours, *others in rows for other in others}


VERBS = _table("""
runs        ps ls list history jobs squeue queue
tail        log logs attach follow watch output show
stop        kill cancel down scancel abort terminate rm_run
exec        ssh sh shell srun cmd pdsh
launch      run start train submit up sbatch
preflight   doctor check test ping lint
setup       install env bootstrap provision
push        sync upload rsync put
pull        fetch download get scp cp
clean       gc prune purge rm cleanup
status      state info inspect describe top
init        new create config discover
stacks      stack dump py_spy trace
tensorboard tb board
rehearse    demo try simulate
export      slurm kubernetes k8s
completion  completions complete
--version   version _v _version
""")
KEYS = _table("""
devices      gpu gpus device cuda_visible_devices gpu_ids
tasks        slots slot nproc nproc_per_node processes ntasks np
packages     pip conda dependencies package deps install
identity     password pass passphrase key key_file identity_file identityfile private_key ssh_key keyfile pem
ssh          host hostname host_name machine node login target
address      ip addr ip_address internal_ip private_ip
user         username login_name ssh_user account
port         ssh_port sshport
task_port    master_port tf_port grpc_port train_port
role         type task_type job_name group
python       interpreter python_path venv virtualenv python_bin
workdir      dir work_dir working_dir cwd remote_dir directory
env          environment envs vars variables env_vars
command      cmd run script entrypoint program main args
ignore       exclude excludes ignored
max_restarts retries restarts max_retries restart
hang_timeout timeout hang
ssh_config   proxy proxyjump proxy_jump bastion jump proxycommand
setup        setup_commands pre before prepare
index        index_url extra_index_url mirror
sets         datasets tfds data_sets
paths        path files folders dirs
""")
TABLES = _table("""
host              node nodes machine machines server servers worker workers
defaults          default global common ssh all
job               jobs launch train training run
env               environment packages pip python
data              dataset datasets
export.kubernetes kubernetes k8s
""")
# A remark next to the right key, where the key alone would be unclear.
_BY_KEY = "logins are by key, and a password is never stored: `ssh-copy-id` installs the key"
_PROXY = "write ProxyJump into ~/.ssh/config, or name another file"
_PROXIES = (other for other, key in KEYS.items() if key == "ssh_config")
REMARKS: Mapping[str, str] = {"password": _BY_KEY, "pass": _BY_KEY, **dict.fromkeys(_PROXIES, _PROXY)}
VALUES = _table("""
chief      master coordinator leader head main
ps         parameter_server parameterserver param_server server
worker     slave trainer replica node
evaluator  eval validator tester
torch      pytorch torchrun lightning ddp
tensorflow tf keras tf2
jax        flax
none       other null no
openssh    openssh_client system
""")


def nearest(
    word: str, valid: Iterable[str], other: Mapping[str, str] = VALUES, cutoff: float = 0.6
) -> str | None:
    """Return the valid word closest to `word`: its meaning in other tools, or similar letters in any case."""
    choices = {choice.lower(): choice for choice in valid}
    plain = word.lower().strip()
    term = other.get(plain.replace("-", "_").replace(" ", "_"))
    if term is not None and term.lower() in choices:
        return choices[term.lower()]
    close = difflib.get_close_matches(plain, choices, n=1, cutoff=cutoff)
    return choices[close[0]] if close else None


def matching(pattern: str, valid: Iterable[str]) -> list[str]:
    """Return the valid words that match a shell pattern such as `gpu-*`; none if it is not a pattern."""
    return [word for word in valid if fnmatch.fnmatchcase(word, pattern)] if set(pattern) & {*"*?"} else []
