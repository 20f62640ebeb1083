"""
Certificates that a test makes for itself.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path


def self_signed(directory: Path, *names: str) -> tuple[Path, Path]:
    """
    A certificate for hosts and addresses that vouches for itself, and its key: files.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-only")])
    hosts: list[x509.GeneralName] = []
    for host in names:
        hosts.append(x509.DNSName(host))
        with suppress(ValueError):
            hosts[-1] = x509.IPAddress(ipaddress.ip_address(host))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    secret.chmod(0o600)
    return certificate, secret
