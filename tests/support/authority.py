"""A private certificate authority, and certificates that it signs."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class Authority:
    """An authority with a key of its own.

    Attributes:
        file: Its certificate, PEM: what those have who trust it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(**dict.fromkeys(USES, False) | {"key_cert_sign": True})
        made = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self._sign(made.add_extension(usage, critical=True), self.file)

    def certify(self, address: str) -> tuple[Path, Path]:
        """Return the files of a certificate for a server at this IP address, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        certificate_file, key_file = self._folder / "server.pem", self._folder / "server.key"
        self._sign(self._builder(_name(address), key).add_extension(names, critical=False), certificate_file)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate_file, key_file

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
            # Python 3.13 and later ask for these.
            .add_extension(own_id, critical=False).add_extension(authority_id, critical=False)
        )  # fmt: skip

    def _sign(self, builder: x509.CertificateBuilder, file: Path) -> None:
        file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
