"""
Certificates that a test makes for itself.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certified:
    """
    Files: the certificate of an authority, one that it gave to some hosts, and the key of that.
    """

    authority: Path
    certificate: Path
    key: Path


def certified(directory: Path, *names: str) -> Certified:
    """
    A certificate for hosts and addresses, from an authority that nobody knows.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("test-only authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(days=1))
            .not_valid_after(datetime.now(UTC) + timedelta(days=1))
            .add_extension(
                x509.BasicConstraints(ca=subject != "test-only", path_length=None), critical=True
            )
        )

    hosts: list[x509.GeneralName] = []
    for host in names:
        hosts.append(x509.DNSName(host))
        with suppress(ValueError):
            hosts[-1] = x509.IPAddress(ipaddress.ip_address(host))
    issuer, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = builder("test-only authority", issuer).sign(issuer, hashes.SHA256())
    given = builder("test-only", key).add_extension(
        x509.SubjectAlternativeName(hosts), critical=False
    )
    found = Certified(*(directory / f"{part}.pem" for part in ("authority", "certificate", "key")))
    found.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    found.certificate.write_bytes(
        given.sign(issuer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    found.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    found.key.chmod(0o600)
    return found
