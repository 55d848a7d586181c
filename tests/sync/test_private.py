"""Files that are never sent: secrets, keys of any name, environments, and our own state."""

import json
import subprocess
from pathlib import Path

import pytest

from orchestrator.sync.private import _PATTERNS, Reason, by_name
from tests.sync.test_listing import git, paths, write
from tests.sync.trees import read_tree

SECRETS = [
    ".ssh/id_ed25519",
    ".ssh/config",
    ".aws/credentials",
    ".config/gcloud/credentials.db",
    ".docker/config.json",
    ".netrc",
    ".git-credentials",
    ".env",
    ".env.production",
    "deep/down/.env",
    "deep/id_rsa",
    "store.p12",
    ".bash_history",
]
ENVIRONMENTS = [".venv/bin/python", "node_modules/x/index.js", ".tox/py/x"]
CACHES = ["__pycache__/a.pyc", ".mypy_cache/x", ".hg/store", "d/.svn/x"]
SENT = [
    "train.py",
    ".env.example",
    "docker/config.json",
    "venv/train.py",
    "envs.py",
    ".github/x.yml",
    "ssh/x",
]


@pytest.fixture(params=["plain", "untracked", "tracked"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with one file of each kind, whatever git ignores."""
    root = tmp_path / "project"
    root.mkdir()
    write(root, *SECRETS, *ENVIRONMENTS, *CACHES, *SENT)
    if request.param != "plain":
        git(root, "init", "-q")
    if request.param == "tracked":
        git(root, "add", "-A", "-f")
        git(root, "commit", "-qm", "x")
    return root


@pytest.mark.parametrize("reason", _PATTERNS)
def test_every_pattern_excludes_a_path(reason: Reason) -> None:
    """Most names are not compared with the patterns one by one."""
    patterns = [text for text in _PATTERNS[reason].split() if not text.startswith("!")]
    found = {text: by_name(text.replace("*", "x").lstrip("/")) for text in patterns}
    assert found == dict.fromkeys(patterns, reason)


def key(path: Path, *options: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", str(path), *options], check=True)


def test_secrets_and_machine_specific_files_are_not_sent(root: Path) -> None:
    tree = read_tree(root)
    assert paths(tree) == sorted(SENT)
    (note,) = tree.notes
    assert note.startswith("not sent: ")
    assert ".orchestrateignore" in note
    assert "__pycache__" not in note
    assert tree.left_out[".ssh/"] is Reason.SECRET
    assert tree.left_out[".venv/"] is Reason.ENVIRONMENT


def test_named_files_are_sent(root: Path) -> None:
    (root / ".orchestrateignore").write_text("!.env\n!.aws/\n")
    sent = paths(read_tree(root, ["!/.docker/config.json"]))
    wanted = {".env", "deep/down/.env", ".aws/credentials", ".docker/config.json"}
    assert set(sent) - {".orchestrateignore"} == {*SENT, *wanted}


def test_ignored_files_are_sent_when_named(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, "a.py", ".env", "data/x/y.csv", "other/z")
    (tmp_path / ".gitignore").write_text(".env\ndata/\nother/\n")
    (tmp_path / ".orchestrateignore").write_text("!.env\n!data/\n")
    assert paths(read_tree(tmp_path)) == [".env", ".gitignore", ".orchestrateignore", "a.py", "data/x/y.csv"]


def test_wildcard_patterns_do_not_include_secrets(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.csv", ".env")
    (tmp_path / ".orchestrateignore").write_text("*.csv\n!*\n!*.*\n")
    assert ".env" not in paths(read_tree(tmp_path))


def test_environments_are_recognized_by_any_name(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "my env/pyvenv.cfg", "my env/lib/x.py", "conda/conda-meta/history", "conda/x")
    tree = read_tree(tmp_path)
    assert paths(tree) == ["a.py"]
    assert tree.left_out == {"my env/": Reason.ENVIRONMENT, "conda/": Reason.ENVIRONMENT}


def test_private_keys_are_recognized_by_content(tmp_path: Path) -> None:
    key(tmp_path / "deploy", "-t", "ed25519")
    key(tmp_path / "data" / "old.txt", "-t", "rsa", "-b", "2048", "-m", "PEM")
    key(tmp_path / "locked", "-t", "rsa", "-b", "2048", "-m", "PKCS8")
    account = '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkq"}'
    (tmp_path / "account.json").write_text(account)
    (tmp_path / "bundle.crt").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    write(tmp_path, "a.py")
    tree = read_tree(tmp_path)
    sent = ["a.py", "bundle.crt", "ca.pem", "data/old.txt.pub", "deploy.pub", "locked.pub"]
    assert paths(tree) == sent
    keys = {path for path, why in tree.left_out.items() if why is Reason.KEY}
    assert keys == {"deploy", "data/old.txt", "locked", "account.json"}
    (tmp_path / ".orchestrateignore").write_text("!/deploy\n")
    assert paths(read_tree(tmp_path)) == sorted([".orchestrateignore", "deploy", *sent])


def test_a_program_quoting_a_key_is_sent_but_a_key_in_a_table_is_not(tmp_path: Path) -> None:
    key(tmp_path / "k", "-t", "ed25519")
    text = (tmp_path / "k").read_text()
    (tmp_path / "a.py").write_text(f'KEY = """\n{text}"""\n')
    (tmp_path / "b").write_text('if "-----BEGIN PRIVATE KEY-----" in text:\n    pass\n')
    (tmp_path / "c.yaml").write_text("key: |\n" + "".join(f"    {line}\r\n" for line in text.splitlines()))
    (tmp_path / "d.json").write_text(json.dumps({"a": {"b": text}}))
    for encoding in ("utf-16", "utf-16-be", "utf-8-sig"):
        (tmp_path / encoding).write_text(text, encoding=encoding)
    (tmp_path / "age.txt").write_text("# public key: age1\nAGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4H\n")
    (tmp_path / "putty").write_text("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n")
    assert paths(read_tree(tmp_path)) == ["a.py", "b", "k.pub"]


def test_our_own_state_is_never_sent(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "state/orchestrate/runs/1/events.jsonl", "state/other")
    (tmp_path / ".orchestrateignore").write_text("!state/orchestrate/\n")
    tree = read_tree(tmp_path, own=[tmp_path / "state" / "orchestrate"])
    assert paths(tree) == [".orchestrateignore", "a.py", "state/other"]
