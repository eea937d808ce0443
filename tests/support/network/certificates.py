"""Certificates of an authority that the test makes, as files that brokers and clients read."""

from __future__ import annotations

import subprocess
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


STORE_PASSWORD = "of the store"


def client_stores(authority: Authority) -> dict[str, dict[str, str]]:
    """A client's properties with the same key and trust as PEM, JKS and PKCS12, made by keytool and openssl,
    and as PEM in the properties, with blanks for line ends.
    """
    place = authority.directory
    own = authority.issue("client", "client.example.org")

    def run(*command: str | Path) -> None:
        subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=60)

    run("openssl", "pkcs12", "-export", "-in", own, "-out", place / "own.p12", "-passout",
        f"pass:{STORE_PASSWORD}", "-name", "client")  # fmt: skip
    run("keytool", "-importkeystore", "-srckeystore", place / "own.p12", "-srcstoretype", "PKCS12",
        "-srcstorepass", STORE_PASSWORD, "-destkeystore", place / "own.jks", "-deststoretype", "JKS",
        "-deststorepass", STORE_PASSWORD)  # fmt: skip
    given = {"PEM": {"ssl.truststore.location": str(authority.file), "ssl.keystore.location": str(own)}}
    for kind, ending in (("JKS", "jks"), ("PKCS12", "p12")):
        trust = place / f"trust.{ending}"
        run("keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", authority.file,
            "-keystore", trust, "-storetype", kind, "-storepass", STORE_PASSWORD)  # fmt: skip
        given[kind] = {
            "ssl.truststore.location": str(trust),
            "ssl.truststore.password": STORE_PASSWORD,
            "ssl.keystore.location": str(place / f"own.{ending}"),
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
        }
    key, _, chain = own.read_text().partition("-----BEGIN CERT")
    given["inline"] = {
        "ssl.truststore.certificates": " ".join(authority.file.read_text().split("\n")),
        "ssl.keystore.key": " ".join(key.split("\n")),
        "ssl.keystore.certificate.chain": " ".join(f"-----BEGIN CERT{chain}".split("\n")),
    }
    types = {"PEM": "PEM", "JKS": "JKS", "PKCS12": "PKCS12", "inline": "PEM"}
    return {
        name: {**values, "ssl.truststore.type": types[name], "ssl.keystore.type": types[name]}
        for name, values in given.items()
    }
