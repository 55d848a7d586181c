"""A key for one transfer: whoever takes part has it, nobody else, and it is good for nothing later."""

from __future__ import annotations

import datetime as dt

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def one_time_key() -> str:
    """A private key and the certificate that it signed itself, as PEM: made in memory, and kept there.

    The certificate has no time in which it is valid, so to say: nodes' clocks may be anything.
    """
    from cryptography import x509  # noqa: PLC0415 - 10 ms of every command, and few make a key

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "orchestrate")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(1971, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2999, 1, 1, tzinfo=dt.UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + certificate.public_bytes(Encoding.PEM)).decode()
