"""Tokens of OAUTHBEARER that tests make, and their keys as an endpoint lists them."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256


def encoded(data: bytes | dict[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def coordinate(value: int) -> str:
    """Of a point of P-256: leading zeros are part of it."""
    return encoded(value.to_bytes(32, "big"))


class Signer:
    """Two keys, ``rsa`` and ``ec``."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())

    def list_keys(self, path: Path) -> str:
        """Write the public keys; the URL of the file."""
        of_rsa, of_ec = self.rsa.public_key().public_numbers(), self.ec.public_key().public_numbers()
        keys = [
            {"kty": "RSA", "kid": "rsa", "n": number(of_rsa.n), "e": number(of_rsa.e)},
            {"kty": "EC", "kid": "ec", "crv": "P-256", "x": coordinate(of_ec.x), "y": coordinate(of_ec.y)},
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
        ]
        path.write_text(json.dumps({"keys": keys}))
        return path.as_uri()

    def token(self, kid: str = "rsa", seconds: float = 60, alg: str | None = None, **claims: Any) -> str:
        """One of alice's that ends in so many seconds."""
        header = {"alg": alg or ("RS256" if kid == "rsa" else "ES256"), "kid": kid}
        body = {"sub": "alice", "exp": time.time() + seconds, **claims}
        signed = f"{encoded(header)}.{encoded(body)}"
        if kid == "ec":
            r, s = decode_dss_signature(self.ec.sign(signed.encode(), ec.ECDSA(SHA256())))
            return f"{signed}.{encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"
        return f"{signed}.{encoded(self.rsa.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"


def unsigned_token(seconds: float = 60, **claims: Any) -> str:
    return f"{encoded({'alg': 'none'})}.{encoded({'sub': 'alice', 'exp': time.time() + seconds, **claims})}."
