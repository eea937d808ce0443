"""OAUTHBEARER on the broker's side: tokens, and their verification.

A token is a JWT signed with a key of an endpoint (JWKS), or anything that a Python function can verify. PyJWT
reads and verifies JWTs; it is imported only when such a listener is configured.
Source: RFC 7628; Apache Kafka's ``OAuthBearerSaslServer`` and ``OAuthBearerValidatorCallbackHandler``.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from kafkalog_broker.config.listener_config import ListenerConfig
from kafkalog_broker.security.authentication import (
    USER,
    Accepted,
    Challenge,
    Exchange,
    LoginRefused,
    Principal,
)
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import jwt
    from jwt.types import Options

_log = logging.getLogger(__name__)

Verifier = Callable[[str], Mapping[str, Any]]
"""Returns a token's claims. Raises `ValueError` for a token that cannot be trusted."""

_FIRST = re.compile(rb"n,(?:a=((?:[^=,\x00]|=2C|=3D)*))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01")
_BEARER = re.compile(rb"(?i)bearer +([-_~+/.A-Za-z0-9]+=*)")
_REFUSED = json.dumps({"status": "invalid_token"}, separators=(",", ":"))
_URL = re.compile(r"(?:https?|file):", re.IGNORECASE)
_FETCH_SECONDS = 10.0
_MAX_KEYS_BYTES = 1 << 20
_MAX_SECONDS = 1 << 40
_COORDINATE_BYTES = 32
"""Of a point of P-256."""

_ALGORITHMS = {"RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "EC": ("ES256",)}

_OTHERS_CHECK: Options = {
    "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_sub": False, "verify_jti": False,
}  # fmt: skip
"""`OAuthBearer` checks name and times of every verifier's claims, by the broker's clock."""

_REFUSALS = {
    "DecodeError": "it is not a JWT",
    "InvalidSignatureError": "its signature is wrong",
    "InvalidAlgorithmError": "its algorithm does not fit its key, or is not RS, PS or ES256",
    "InvalidIssuerError": "its issuer (iss) is not sasl.oauthbearer.expected.issuer",
    "InvalidAudienceError": "its audience (aud) is not one of sasl.oauthbearer.expected.audience",
}
"""Messages for PyJWT's errors by class; the others' own messages are used."""

SIGNED = "OAuthBearerValidatorCallbackHandler"
UNSIGNED = "OAuthBearerUnsecuredValidatorCallbackHandler"


@dataclass(eq=False)
class OAuthBearer:
    """*Thread-safe.* Calls ``verify`` for each token. Expired tokens are refused whatever it says."""

    verify: Verifier
    _: KW_ONLY
    name_claim: str = "sub"
    skew_ms: int = 0
    may_block: bool = False
    max_lifetime_ms: int = 0

    def begin(self) -> Exchange:
        return _OAuthExchange(self)

    def accept(self, message: bytes, now_ms: int) -> Accepted:
        """Raises `ValueError` with the reason, without the token; `LoginRefused`: malformed message."""
        found = _FIRST.fullmatch(message)
        if found is None:
            raise LoginRefused("Invalid OAUTHBEARER client first message")
        pairs = dict(pair.split(b"=", 1) for pair in found[2].split(b"\x01") if pair)
        bearer = _BEARER.fullmatch(pairs.get(b"auth", b"").strip())
        if bearer is None:
            raise LoginRefused("Invalid OAUTHBEARER client first message: 'auth' not specified")
        claims = self.verify(bearer[1].decode())
        name, expires = claims.get(self.name_claim), claims.get("exp")
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"its claim {self.name_claim} is not a name")
        if (
            isinstance(expires, bool)
            or not isinstance(expires, int | float)
            or not abs(expires) < _MAX_SECONDS
        ):
            raise ValueError("it has no expiry time (exp)")
        rest_ms = int(expires * 1000) - now_ms
        if rest_ms + self.skew_ms <= 0:
            raise ValueError("it has expired (exp)")
        begins = claims.get("nbf")
        if isinstance(begins, int | float) and begins * 1000 > now_ms + self.skew_ms:
            raise ValueError("it is not valid yet (nbf)")
        acts_for = (found[1] or b"").decode(errors="replace").replace("=2C", ",").replace("=3D", "=")
        if acts_for not in ("", name):
            raise LoginRefused(
                f"Authentication failed: Client requested an authorization id ({acts_for[:100]}) that is "
                f"different from the token's principal name ({name[:100]})"
            )
        return Accepted(Principal(USER, name), b"", max(1, rest_ms))


class _OAuthExchange:
    """*Not thread-safe: one login.* A refusal is sent as a challenge, after which the client gives up."""

    def __init__(self, mechanism: OAuthBearer) -> None:
        self._mechanism = mechanism
        self._refused = False

    def evaluate(self, token: bytes, now_ms: int) -> Challenge | Accepted:
        if self._refused:
            raise LoginRefused(_REFUSED)
        try:
            return self._mechanism.accept(token, now_ms)
        except ValueError as e:
            _log.info("a token is refused: %s", e)
            self._refused = True
            return Challenge(_REFUSED.encode())


class SignedTokens:
    """*Thread-safe: ``_keys`` is replaced as a whole; ``_fetching`` is held by the thread that fetches.*
    Verifies JWTs with the keys of an endpoint. A token with an unknown key is refused, and sets ``wanted``.
    """

    def __init__(self, url: str, *, issuer: str | None = None, audience: Sequence[str] = ()) -> None:
        """Raises `InvalidConfig`: the package cryptography is missing, or the URL is not usable."""
        if not _URL.match(url):
            raise InvalidConfig(f"sasl.oauthbearer.jwks.endpoint.url={url}: https:, http: or file:")
        try:
            import cryptography  # noqa: F401
        except ImportError as e:
            raise InvalidConfig("signed tokens need cryptography: pip install 'pyspark-kafkalog[tls]'") from e
        self._url = url
        self._issuer = issuer
        self._audience = frozenset(audience)
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetching = threading.Lock()
        self.wanted = False

    def refresh(self) -> None:
        """Fetch the keys. Raises `InvalidConfig`: that failed; the old keys stay."""
        from urllib.request import urlopen  # with all of HTTP

        with self._fetching:
            try:
                with urlopen(self._url, timeout=_FETCH_SECONDS) as answer:
                    listed = json.loads(answer.read(_MAX_KEYS_BYTES))["keys"]
                keys = {str(key.key_id or ""): key for each in listed if (key := _usable(each)) is not None}
            except (OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as e:
                raise InvalidConfig(f"keys of sasl.oauthbearer.jwks.endpoint.url={self._url}: {e}") from e
            if not keys:
                raise InvalidConfig(
                    f"sasl.oauthbearer.jwks.endpoint.url={self._url} has no key of RSA or P-256"
                )
            self._keys, self.wanted = keys, False

    def refresh_in_background(self) -> None:
        try:
            self.refresh()
        except InvalidConfig as e:
            _log.error("%s", e)

    def __call__(self, token: str) -> Mapping[str, Any]:
        """The claims of a token with valid signature, issuer and audience. Raises `ValueError`."""
        import jwt

        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                self.wanted = True
                raise ValueError("it is signed with a key that the endpoint does not have")
            return jwt.decode(
                token, key.key, _ALGORITHMS[str(key.key_type)],
                {**_OTHERS_CHECK, "verify_aud": bool(self._audience)},
                audience=self._audience, issuer=self._issuer,
            )  # fmt: skip
        except jwt.PyJWTError as e:
            raise ValueError(_refusal(e)) from None


def _usable(listed: Mapping[str, Any]) -> jwt.PyJWK | None:
    """A key of RSA or P-256; None for others, and with a warning for one that cannot be read."""
    import jwt

    if listed.get("kty") != "RSA" and (listed.get("kty"), listed.get("crv")) != ("EC", "P-256"):
        return None
    public = {name: listed[name] for name in listed if name != "d"}  # `d`: the private part
    try:
        for name in {"x", "y"} & public.keys():
            # Some issuers leave out leading zeros, which Kafka takes and PyJWT does not.
            whole = urlsafe_b64decode(public[name] + "==").rjust(_COORDINATE_BYTES, b"\0")
            public[name] = urlsafe_b64encode(whole).decode()
        return jwt.PyJWK(public)
    except (jwt.PyJWTError, ValueError, TypeError) as e:
        _log.warning("the key %r of the endpoint cannot be used: %s", listed.get("kid"), e)
        return None


def unsigned(token: str) -> Mapping[str, Any]:
    """The claims of a token without a signature (``alg`` none), for tests. Raises `ValueError`."""
    import jwt

    try:
        parts = jwt.decode_complete(token, options={"verify_signature": False})
    except jwt.PyJWTError as e:
        raise ValueError(_refusal(e)) from None
    if parts["header"].get("alg") != "none" or parts["signature"]:
        raise ValueError("it is signed, and this broker was told to take unsigned tokens")
    claims: Mapping[str, Any] = parts["payload"]
    return claims


def _refusal(error: jwt.PyJWTError) -> str:
    return _REFUSALS.get(type(error).__name__) or str(error)


def oauth_bearer(config: ListenerConfig, source: str) -> tuple[OAuthBearer, SignedTokens | None]:
    """The configured mechanism, and the keys to refresh, if any. Raises `InvalidConfig`."""
    handler = config.sasl_server_callback_handler_class
    keys: SignedTokens | None = None
    verify: Verifier
    if handler is not None and ":" in handler:
        verify = _function(handler, source)
    elif handler is not None and handler.endswith(UNSIGNED):
        verify = unsigned
    elif handler is not None and not handler.endswith(SIGNED):
        raise InvalidConfig(
            f"{source}sasl.server.callback.handler.class={handler} is not known; there are {SIGNED}, "
            f"{UNSIGNED}, and module:function of Python"
        )
    elif config.sasl_oauthbearer_jwks_endpoint_url is None:
        raise InvalidConfig(
            f"OAUTHBEARER needs a way to verify tokens: {source}sasl.oauthbearer.jwks.endpoint.url, or "
            f"{source}sasl.server.callback.handler.class=module:function"
        )
    else:
        verify = keys = SignedTokens(
            config.sasl_oauthbearer_jwks_endpoint_url,
            issuer=config.sasl_oauthbearer_expected_issuer,
            audience=config.sasl_oauthbearer_expected_audience,
        )
        keys.refresh()
    mechanism = OAuthBearer(
        verify,
        name_claim=config.sasl_oauthbearer_sub_claim_name,
        skew_ms=config.sasl_oauthbearer_clock_skew_seconds * 1000,
        may_block=verify is not unsigned and keys is None,
        max_lifetime_ms=config.connections_max_reauth_ms,
    )
    return mechanism, keys


def _function(name: str, source: str) -> Verifier:
    module, _, function = name.partition(":")
    try:
        found: Verifier = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as e:
        raise InvalidConfig(f"{source}sasl.server.callback.handler.class={name}: {e}") from e

    def verify(token: str) -> Mapping[str, Any]:
        try:
            return found(token)
        except ValueError:
            raise
        except Exception as e:
            # Its message may contain the token.
            raise ValueError(f"{name} raised {type(e).__name__}") from None

    return verify
