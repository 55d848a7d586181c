"""Files that are not sent unless the user names them (secrets, machine-specific files), and remarks."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from orchestrator.node.stock.manifest import Manifest
from orchestrator.text import size, some

if TYPE_CHECKING:
    import pathspec


class Reason(StrEnum):
    """Why a file or folder is not sent."""

    SECRET = "secrets"  # noqa: S105 - the word
    KEY = "private keys"  # detected by their content
    ENVIRONMENT = "environments"
    CACHE = "caches"  # rarely missed: only a dry run lists them
    OURS = "orchestrate's own files"


_PATTERNS = {
    # Where, and under which names, programs store logins, tokens and histories.
    Reason.SECRET: """
.ssh/ .aws/ .azure/ .oci/ .gnupg/ .kube/ .password-store/ .gsutil/
.config/gcloud/ .config/gh/ .config/hub .config/rclone/ .config/doctl/ .config/op/
.config/containers/auth.json
.docker/config.json .dockercfg .cargo/credentials .cargo/credentials.toml .gem/credentials
.huggingface/token .cache/huggingface/token .kaggle/ kaggle.json .databrickscfg .snowsql/
.netrc _netrc .authinfo .authinfo.gpg .git-credentials .pypirc .npmrc .yarnrc.yml .condarc
.pgpass .my.cnf .mylogin.cnf .s3cfg .boto .htpasswd .vault-token .terraformrc credentials.tfrc.json
.env .env.* .envrc !.env.example !.env.sample !.env.template !.env.dist !.env.defaults
id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk
*.ppk *.p12 *.pfx *.jks *.keystore *.kdbx *.agekey *.tfstate *.tfstate.backup *.ovpn
.bash_history .zsh_history .sh_history .python_history .node_repl_history .psql_history .mysql_history
.sqlite_history .Rhistory .Renviron .Xauthority .ICEauthority
""",
    # What was built for, or installed on, one machine.
    Reason.ENVIRONMENT: """
.venv/ node_modules/ .tox/ .nox/ .pixi/ .direnv/ .eggs/ .conda/ .Rproj.user/ renv/library/
.vagrant/ .terraform/
""",
    Reason.CACHE: """
__pycache__/ .mypy_cache/ .ruff_cache/ .pytest_cache/ .hypothesis/ .pytype/ .pyre/ .ipynb_checkpoints/
.hg/ .svn/ .bzr/ .jj/ CVS/ .DS_Store ._* Thumbs.db desktop.ini .Trash/ lost+found/ .nfs* *.swp *.swo .#*
""",
    Reason.OURS: "/.cluster/ .orchestrate-*",
}

ALWAYS = (".git",)  # cannot be named: a repository is not part of its own code


@cache
def _rules() -> dict[Reason, pathspec.GitIgnoreSpec]:
    """Compile the patterns on first use: a keeper receives a listing and rarely needs them."""
    import pathspec  # noqa: PLC0415

    return {reason: pathspec.GitIgnoreSpec.from_lines(text.split()) for reason, text in _PATTERNS.items()}


# A folder with one of these is an environment, whatever its name.
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta/history")

WARN_SIZE = 50 * 1000 * 1000
_NAMED = 4  # paths of one kind on one line
_LARGEST = 3
_REPORTED = (Reason.SECRET, Reason.KEY, Reason.ENVIRONMENT)  # the rest is rarely missed; a dry run lists it
# The armor line anywhere (indented, quoted), and how a key begins; PuTTY's and age's first words.
_ARMOUR = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:\s|\\[rn]|[\"'>#*])*(?:[A-Za-z0-9+/=]{16,}|[A-Za-z-]+: )"
    rb"|PuTTY-User-Key-File-[0-9]: |AGE-SECRET-KEY-1[A-Z0-9]{16}"
)
# A key embedded in a program or a page is part of that: without it the program would not run.
_TEXTS = (".py", ".ipynb", ".r", ".rmd", ".sh", ".c", ".cc", ".cpp", ".h", ".md", ".rst", ".html")


@cache
def _names() -> re.Pattern[str]:
    """Match a name that ends one of the patterns: the patterns one by one take far longer."""
    ends = {pattern.strip("!/").rpartition("/")[2] for pattern in " ".join(_PATTERNS.values()).split()}
    return re.compile("|".join(map(fnmatch.translate, ends)))


def by_name(path: str) -> Reason | None:
    """Return why a path (a folder's ends with a slash) is left out because of its name; None if it is not."""
    if not any(map(_names().match, path.split("/"))):
        return None
    return next((reason for reason, spec in _rules().items() if spec.match_file(path)), None)


def holds_key(path: str, content: bytes) -> bool:
    """Return True if a file's content is a private key; UTF-16 is read without its zeros."""
    return not path.lower().endswith(_TEXTS) and bool(_ARMOUR.search(content.replace(b"\0", b"")))


def remarks(paths: Mapping[str, Reason]) -> Iterator[str]:
    """Return one line about secrets and environments, with the way to send them anyway."""
    kinds = {reason: members for reason, members in by_reason(paths) if reason in _REPORTED}
    if kinds:
        named = ", ".join(f"{some(members, _NAMED)} ({reason})" for reason, members in kinds.items())
        yield f"not sent: {named}; {how_to_send(next(iter(kinds.values()))[0])}"


def how_to_send(path: str) -> str:
    return f"to send one, write it into .orchestrateignore with a ! before it: !/{path}"


def by_reason(paths: Mapping[str, Reason]) -> Iterator[tuple[Reason, list[str]]]:
    """Return what was left out, by reason."""
    for reason in Reason:
        if members := sorted(path for path, why in paths.items() if why is reason):
            yield reason, members


def weight(manifest: Manifest) -> Iterator[str]:
    """Return what a large tree consists of; nothing about a small one."""
    if manifest.total < WARN_SIZE:
        return
    largest = ", ".join(f"{path} {size(many)}" for path, many, _ in folders(manifest)[:_LARGEST])
    yield (
        f"the code has {size(manifest.total)}, sent to every host: {largest}; list what the tasks do not need"
        " in .orchestrateignore, and keep data on the hosts"
    )


def folders(manifest: Manifest) -> list[tuple[str, int, int]]:
    """Return (path, bytes, files) of the entries at the top of the tree, the largest first."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for entry in manifest.files:
        head, slash, _ = entry.path.partition("/")
        sizes[head + slash] += entry.size
        counts[head + slash] += 1
    return sorted(((path, sizes[path], counts[path]) for path in sizes), key=lambda row: (-row[1], row[0]))
