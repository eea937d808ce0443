"""Certificates of an authority that the test makes, as files that brokers and clients read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Authority:
    """Keeps its files in ``directory``; every key is PKCS#8, which Java reads too."""

    directory: Path
    ca: trustme.CA

    @classmethod
    def made(cls, directory: Path) -> Authority:
        """A new one, whose own certificate is ``ca.pem``."""
        directory.mkdir(parents=True, exist_ok=True)
        authority = cls(directory, trustme.CA())
        authority.ca.cert_pem.write_to_path(directory / "ca.pem")
        return authority

    @property
    def file(self) -> Path:
        """What clients trust."""
        return self.directory / "ca.pem"

    def issue(self, name: str, *hosts: str, common_name: str | None = None) -> Path:
        """``<name>.pem``: the key, the certificate and its chain."""
        issued = self.ca.issue_cert(*hosts, common_name=common_name)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        path = self.directory / f"{name}.pem"
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        )
        return path
