"""SCRAM-SHA-256 and -512: messages and computations of both sides, without I/O.

Source: RFC 5802, RFC 7677; Kafka's `ScramFormatter` (names are not prepared by SASLprep) and `ScramMessages`
(extension ``tokenauth``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

MECHANISMS: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}  # hashlib's names
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1_000_000  # fewer make guessing cheap, more would take seconds

_SERVER_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})(?:,.*)?", re.DOTALL)
_SERVER_FINAL = re.compile(r"(?:v=([A-Za-z0-9+/=]+)|e=([^,]*))(?:,.*)?", re.DOTALL)
_CLIENT_FIRST = re.compile(
    r"n,(?:a=((?:[^=,\x00]|=2C|=3D)*))?,(n=((?:[^=,\x00]|=2C|=3D)+),r=([\x21-\x2b\x2d-\x7e]+)((?:,[A-Za-z]+=[^,]+)*))"
)
_CLIENT_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^,]+)*?),p=([A-Za-z0-9+/=]+)")


class ScramError(ValueError): ...


@dataclass(frozen=True)
class ScramCredential:
    """*Thread-safe: immutable.* What a server stores in place of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_password(cls, mechanism: str, password: str, *, salt: bytes, iterations: int) -> ScramCredential:
        """From a password; takes 2.5 ms (SHA-256) to 7 ms at 4096 iterations."""
        return cls.of_salted(mechanism, salted(mechanism, password, salt, iterations), salt, iterations)

    @classmethod
    def of_salted(
        cls, mechanism: str, salted_password: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        """From a password salted by the client, as in AlterUserScramCredentials."""
        name = MECHANISMS[mechanism]
        stored = hashlib.new(name, hmac.digest(salted_password, b"Client Key", name)).digest()
        return cls(salt, stored, hmac.digest(salted_password, b"Server Key", name), iterations)

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Parse the result of `text`. Raises `ValueError`, without the text."""
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            raw = [
                base64.b64decode(fields[key], validate=True) for key in ("salt", "stored_key", "server_key")
            ]
            iterations = int(fields["iterations"])
        except (KeyError, ValueError):
            raise ValueError(
                "not a SCRAM credential: salt=…,stored_key=…,server_key=…,iterations=…"
            ) from None
        return cls(raw[0], raw[1], raw[2], iterations)

    def text(self) -> str:
        """Kafka's form: ``salt=…,stored_key=…,server_key=…,iterations=4096``, in base64."""
        salt, stored, server = map(_base64, (self.salt, self.stored_key, self.server_key))
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password (PBKDF2 with HMAC), from which all keys derive."""
    return hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)


class ScramClient:
    """*Not thread-safe: one login.* The client's steps: `first`, `final`, `verify`."""

    def __init__(
        self, mechanism: str, user: str, password: str, *, token: bool = False, nonce: str | None = None
    ) -> None:
        """``token``: user and password are id and HMAC of a delegation token."""
        self._mechanism, self._password = mechanism, password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._bare = f"n={_escaped(user)},r={self._nonce}" + (",tokenauth=true" if token else "")
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Raises `ScramError` if the server must not have the client's proof."""
        text = _decoded(server_first)
        if text.startswith("e="):
            raise ScramError(f"the server refuses: {text[2:].split(',')[0]}")
        found = _parsed(_SERVER_FIRST, text, "the server's first")
        nonce, salt, iterations = found[1], _unbase64(found[2]), int(found[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not continue the client's")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramError(
                f"the server asks for {iterations} iterations; allowed: {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        name = MECHANISMS[self._mechanism]
        key = salted(self._mechanism, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{text},{without_proof}".encode()
        client_key = hmac.digest(key, b"Client Key", name)
        proof = _xor(client_key, hmac.digest(hashlib.new(name, client_key).digest(), message, name))
        self._signature = hmac.digest(hmac.digest(key, b"Server Key", name), message, name)
        return f"{without_proof},p={_base64(proof)}".encode()

    def verify(self, server_final: bytes) -> None:
        found = _parsed(_SERVER_FINAL, _decoded(server_final), "the server's last")
        if found[2] is not None:
            raise ScramError(f"the server refuses: {found[2]}")
        if not self._signature or not hmac.compare_digest(_unbase64(found[1]), self._signature):
            raise ScramError(
                "the server does not know the password: it may not be the broker that it seems to be"
            )


class ScramServer:
    """*Not thread-safe: one login.* Steps: `read_first`, then look up the credential, `first`, `final`."""

    user = ""
    authorization_id = ""  # the user to act for; empty for the client itself
    token = False

    def __init__(self, mechanism: str, *, nonce: str | None = None) -> None:
        self._mechanism = mechanism
        self._own_nonce = nonce or secrets.token_urlsafe(24)
        self._nonce, self._bare, self._first = "", "", ""
        self._credential: ScramCredential | None = None

    def read_first(self, client_first: bytes) -> str:
        found = _parsed(_CLIENT_FIRST, _decoded(client_first), "the client's first")
        self.authorization_id, self.user = _name(found[1] or ""), _name(found[3])
        self._bare, self._nonce = found[2], found[4] + self._own_nonce
        self.token = "tokenauth=true" in found[5].split(",")
        return self.user

    def first(self, credential: ScramCredential) -> bytes:
        self._credential = credential
        self._first = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}"
        return self._first.encode()

    def final(self, client_final: bytes) -> bytes:
        """Raises `ScramError` if the client's proof is wrong."""
        found = _CLIENT_FINAL.fullmatch(_decoded(client_final))
        if found is None or self._credential is None:
            raise ScramError("the client's last message cannot be read")
        # It must repeat the first header: "n,,", or with an authorization id.
        header = _unbase64(found[2])
        if header not in (b"n,,", f"n,a={_escaped(self.authorization_id)},".encode()):
            raise ScramError("the client's channel binding is not the one it began with")
        if not hmac.compare_digest(found[3].encode(), self._nonce.encode()):
            raise ScramError("the client's nonce is not the one that it was given")
        name, credential = MECHANISMS[self._mechanism], self._credential
        message = f"{self._bare},{self._first},{found[1]}".encode()
        proof, signature = _unbase64(found[4]), hmac.digest(credential.stored_key, message, name)
        if len(proof) != len(signature) or not hmac.compare_digest(
            hashlib.new(name, _xor(proof, signature)).digest(), credential.stored_key
        ):
            raise ScramError("wrong proof")
        return b"v=" + _base64(hmac.digest(credential.server_key, message, name)).encode()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("a message holds broken base64") from None


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message is not UTF-8") from None


def _parsed(pattern: re.Pattern[str], text: str, whose: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ScramError(f"{whose} message cannot be read")
    return match


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _name(escaped: str) -> str:
    return escaped.replace("=2C", ",").replace("=3D", "=")
