# shellcheck shell=bash
# Shared functions of the scripts: sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# Environments and images shared by all clones of a user; on a local disk, since it contains a
# lock and the training environment is 1.4 GB of small files.
envs=${ORCHESTRATE_ENVS:-/var/tmp/orchestrate-envs-$(id -u)}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# fail STATUS WHAT [WHY [TRY]]
fail() {
    printf 'error: %s\n' "$2" >&2
    [[ -z ${3-} ]] || printf '  why: %s\n' "$3" >&2
    [[ -z ${4-} ]] || printf '  try: %s\n' "$4" >&2
    exit "$1"
}

have() { command -v "$1" >/dev/null 2>&1; }

# The first 12 digits of a hash of stdin, computed by a program that exists everywhere.
digest() { git hash-object --stdin | cut -c1-12; }

make_envs_folder() {
    (umask 022 && mkdir -p "$envs") || fail 3 "cannot make $envs" "" "set ORCHESTRATE_ENVS to a folder of yours on a local disk"
    # The default name can be guessed, and the folder's owner controls what we run.
    [[ -O $envs && ! -L $envs ]] ||
        fail 3 "$envs is not yours" "it belongs to another user or is a link" "set ORCHESTRATE_ENVS to a folder of yours on a local disk"
}

# One setup at a time across all clones of a user: `locked NAME COMMAND...` runs COMMAND in this shell.
locked() {
    local name=$1
    shift
    make_envs_folder
    if ! have flock; then # macOS
        "$@"
        return
    fi
    local lock
    exec {lock}>"$envs/$name.lock"
    if ! flock --nonblock "$lock"; then
        say "waiting for another setup on this machine ($envs/$name.lock)"
        flock "$lock"
    fi
    # Not inherited: a daemon started by COMMAND must not keep the lock.
    "$@" {lock}>&-
    exec {lock}>&-
}

# Pythons that uv downloads if the system has none that TensorFlow supports (Ubuntu 26.04 has 3.14).
pythons=$envs/pythons

# The first Python of at least 3.11, and below LIMIT if given. The system's own comes first:
# environments built from it outlive tools that bring their own Python.
base_python() {
    local candidate limit=${1:-9.9}
    for candidate in /usr/bin/python3 python3 python3.1{4,3,2,1} "$pythons"/*/bin/python3; do
        if "$candidate" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (${limit/./, }))" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# TensorFlow supports no newer Python yet.
worker_base() { base_python 3.14; }

# The base image of containers that mount the training environment: it has the same Python.
base_image() {
    case $("$(worker_base)" --version 2>/dev/null) in # before set-up there may be none
        *' 3.11'*) echo debian:bookworm-slim ;;
        *' 3.12'*) echo ubuntu:noble ;;
        *) echo debian:trixie-slim ;;
    esac
}

# The training environment, named after a hash of its contents. Built from the system's Python, it also
# runs in containers with the same version at the same path.
worker_env() {
    {
        "$(worker_base)" --version
        cat "$root/scripts/requirements/worker.txt"
    } | digest | sed "s|^|$envs/worker-|"
}

worker_python() { printf '%s/bin/python\n' "$(worker_env)"; }

r_missing() {
    if have Rscript; then
        Rscript -e 'for (name in c("reticulate", "jsonlite")) if (!nzchar(system.file(package = name))) cat("r-cran-", name, "\n", sep = "")'
    else
        printf '%s\n' r-base-core r-cran-reticulate r-cran-jsonlite
    fi
}

# Debian's reticulate 1.28 supports neither numpy 2 nor a Python above 3.11: a separate environment.
# From 1.38 on it can use the common one.
r_is_old() { Rscript -e 'quit(status = packageVersion("reticulate") >= "1.38")' >/dev/null 2>&1; }

r_base() { base_python 3.12; }

r_env() {
    r_is_old || {
        worker_env
        return
    }
    {
        "$(r_base)" --version
        cat "$root/scripts/requirements/r.txt"
    } | digest | sed "s|^|$envs/r-|"
}

# JAX with Keras 3, and PyTorch: separate from the TensorFlow environment, for programs without TensorFlow.
framework_env() {
    {
        "$(worker_base)" --version
        cat "$root/scripts/requirements/$1.txt"
    } | digest | sed "s|^|$envs/$1-|"
}

framework_python() { printf '%s/bin/python\n' "$(framework_env "$1")"; }

r_python() { printf '%s/bin/python\n' "$(r_env)"; }

# Variables that pytest must not inherit, since they change the tested behavior.
clean_environment() { unset PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE; }
