"""Which keys are offered to a host, in what order, and why others are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from orchestrator.ssh import keyfile
from orchestrator.ssh.algorithms import permits
from orchestrator.ssh.keys import Keyring
from orchestrator.ssh.target import Method, Target


@dataclass(frozen=True)
class Offer:
    """A key to be tried; `label` is how a person knows it: its path or the agent's comment."""

    label: str
    key: paramiko.PKey


def offers(target: Target, keyring: Keyring) -> Iterator[Offer]:
    """The keys for a target, less those that ssh_config rules out."""
    if Method.PUBLICKEY in target.methods:
        yield from (offer for offer in _candidates(target, keyring) if not _ruled_out(offer.key, target))


def key_files(target: Target, keyring: Keyring) -> list[keyfile.Loaded]:
    """The identity files that exist, if only their public half, with a certificate that was named for it."""
    paths = [path for path in dict.fromkeys(target.identities) if _is_there(path)]
    return [keyring.file(path, _certificate_for(path, target)) for path in paths]


@dataclass(frozen=True)
class Unusable:
    """Why keys of a target could not be offered."""

    lines: tuple[str, ...]
    locked: Path | None = None  # one of them, which only lacks its passphrase


def unusable(target: Target, keyring: Keyring) -> Unusable:
    if Method.PUBLICKEY not in target.methods:
        return Unusable(("ssh_config rules keys out (PubkeyAuthentication or PreferredAuthentications)",))
    held = {_blob(key) for key in keyring.agent_keys(target.agent)}
    files = [file for file in key_files(target, keyring) if file.public not in held]
    lines = [f"{file.path} {file.problem}" for file in files if file.problem]
    for offer in _candidates(target, keyring):
        if why := _ruled_out(offer.key, target):
            lines.append(f"{offer.label} {why}")
    if target.pkcs11:
        lines.append(
            f"the keys of PKCS11Provider are offered only from an agent (ssh-add -s {target.pkcs11})"
        )
    return Unusable(tuple(lines), next((file.path for file in files if file.locked), None))


def _candidates(target: Target, keyring: Keyring) -> Iterator[Offer]:
    """Chosen ones in the agent, chosen files, the agent's others, ssh's own files.

    Chosen files come before the agent's other keys, since a host hangs up after a few refusals.
    """
    held = keyring.agent_keys(target.agent)
    files = key_files(target, keyring)
    certificates = {path: blob for path in _certificates(target) if (blob := keyfile.public_in(path))}
    chosen = {file.public for file in files if file.public} | set(certificates.values())
    chosen_first = not target.default_identities
    mine = [key for key in held if _blob(key) in chosen]
    others = [] if target.identities_only else [key for key in held if _blob(key) not in chosen]
    in_agent = {_blob(key) for key in mine}
    loaded = [Offer(str(file.path), file.key) for file in files if file.key and not _held(file.key, in_agent)]
    yield from _with_certificates(held, certificates)
    yield from map(_agent_offer, mine)
    if chosen_first:
        yield from loaded
    yield from map(_agent_offer, others)
    if not chosen_first:
        yield from loaded


def _ruled_out(key: paramiko.PKey, target: Target) -> str:
    """What ssh_config has against this key."""
    kind = key.public_blob.key_type if key.public_blob else key.get_name()
    if not permits(target.algorithms.user_keys, kind):
        return f"is a {kind} key, which PubkeyAcceptedAlgorithms rules out"
    if kind.startswith("ssh-rsa") and 0 < (bits := key.get_bits()) < target.rsa_bits:
        return f"has {bits} bits, and RequiredRSASize asks for {target.rsa_bits}"
    return ""


def _with_certificates(held: Iterable[paramiko.AgentKey], certificates: dict[Path, bytes]) -> Iterator[Offer]:
    """The agent's keys with certificates of files; a certificate that the agent holds comes by itself."""
    blobs = {_blob(key): key for key in held}
    for path, certificate in certificates.items():
        key = blobs.get(keyfile.certified(certificate) or b"")
        if key is not None and certificate not in blobs:
            certified = _again(key)
            certified.load_certificate(str(path))
            yield Offer(f"{path} (ssh-agent)", certified)


def _certificates(target: Target) -> list[Path]:
    """Those named, and those beside the identity files."""
    beside = [Path(f"{str(path).removesuffix('.pub')}-cert.pub") for path in target.identities]
    return list(dict.fromkeys([*target.certificates, *beside]))


def _is_there(path: Path) -> bool:
    return path.is_file() or Path(f"{path}.pub").is_file()


def _held(key: paramiko.PKey, in_agent: set[bytes]) -> bool:
    """Whether the agent offers the same; a certificate beside the file makes it another offer."""
    return key.public_blob is None and key.asbytes() in in_agent


def _certificate_for(path: Path, target: Target) -> Path | None:
    """CertificateFile names no key: the one that lies beside, else the only one."""
    beside = [certificate for certificate in target.certificates if certificate.name.startswith(path.name)]
    if beside:
        return beside[0]
    return target.certificates[0] if len(target.certificates) == 1 and not target.default_identities else None


def _agent_offer(key: paramiko.AgentKey) -> Offer:
    label = f"{key.comment or key.get_name()} (ssh-agent)"
    if keyfile.certified(_blob(key)) is not None:
        key = _again(key)
        key.inner_key = None  # type: ignore[attr-defined]  # else paramiko shows and signs with the plain key
    return Offer(label, key)


def _again(key: paramiko.AgentKey) -> paramiko.AgentKey:
    """The same key, to be changed: the other hosts share the first one."""
    return paramiko.AgentKey(key.agent, _blob(key), key.comment)


def _blob(key: paramiko.AgentKey) -> bytes:
    return bytes(key.blob)
