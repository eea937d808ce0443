"""Sources of OAuth tokens, and a process-wide cache with renewal.

For Amazon MSK: aws-msk-iam-sasl-signer-python, with the JAAS options of aws-msk-iam-auth's IAMLoginModule.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark_kafkalog.client.transport import reason_of
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.config.security_config import TlsConfig
from pyspark_kafkalog.errors import AuthenticationFailed, EndpointUnreachable, InvalidConfig, KafkaError
from pyspark_kafkalog.security.references import found_file
from pyspark_kafkalog.security.tls import client_context

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

logger = logging.getLogger(__name__)

_RENEWED_AT = 0.8  # fraction of a token's lifetime after which it is renewed
_MAX_ANSWER_BYTES = 1 << 20
_MAX_SOURCES = 64
_SHORT_SECRET = 4


class Token(NamedTuple):
    """A token and its end in seconds since 1970; 0: fetch it for each login."""

    text: str
    expires_at: float


@dataclass(slots=True, eq=False)
class _Kept:
    """*Thread-safe.* The cached token of a source; `lock` guards it and makes others wait for a fetch."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    token: Token | None = None
    renew_at: float = 0.0


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Another side's ``text`` without ``secrets``, in case it repeats one."""
    for secret in filter(None, secrets):
        # Mask short secrets as whole words only: inside other words the mask would reveal their letters.
        around = "" if len(secret) > _SHORT_SECRET else r"\b"
        text = re.sub(around + re.escape(secret) + around, "***", text)
    return text


_kept: dict[TokenSource, _Kept] = {}
_kept_lock = threading.Lock()


def current(source: TokenSource, seconds: float) -> str:
    """The cached token of ``source``, renewed after 80 % of its life; used to its end if that fails."""
    with _kept_lock:
        if source not in _kept and len(_kept) >= _MAX_SOURCES:
            _kept.pop(next(iter(_kept)))
        kept = _kept.setdefault(source, _Kept())
    with kept.lock:
        now = SYSTEM_CLOCK.time_ms() / 1000
        if kept.token is not None and now < kept.renew_at:
            return kept.token.text
        try:
            token = source.fetch(seconds)
        except KafkaError as e:
            if kept.token is None or now >= kept.token.expires_at:
                raise
            logger.warning("the OAuth token is used on, because it cannot be renewed: %s", e)
            return kept.token.text
        kept.token = token
        kept.renew_at = now + (token.expires_at - now) * _RENEWED_AT if token.expires_at > now else 0.0
        return token.text


@dataclass(frozen=True)
class EndpointSource:
    """An OAuth endpoint for client credentials. Source: RFC 6749, section 4.4; KIP-768."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None
    urlencode: bool
    option: str
    tls: TlsConfig | None = field(default=None, repr=False)
    """``ssl.*`` options for https; None: the system's authorities."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.client_secret,)

    def fetch(self, seconds: float) -> Token:
        import ssl
        import urllib.error  # takes 20 ms, needed for this source only
        import urllib.request
        from http.client import HTTPException

        pair = (self.client_id, self.client_secret)
        if self.urlencode:
            pair = (urllib.parse.quote_plus(pair[0]), urllib.parse.quote_plus(pair[1]))
        body = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        request = urllib.request.Request(
            self.url,
            data=urllib.parse.urlencode(body).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(":".join(pair).encode()).decode(),
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        where = urllib.parse.urlsplit(self.url)
        place = f"{where.hostname}:{where.port}" if where.port else str(where.hostname)
        try:
            with self._opener().open(request, timeout=max(seconds, 0.1)) as answer:
                text = answer.read(_MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as e:
            with e:
                reason = _refusal(e.read(_MAX_ANSWER_BYTES))
            if e.code >= 500 or e.code in (408, 429):
                raise EndpointUnreachable(
                    f"the token endpoint {place} ({self.option})", f"it answered {e.code}", silent=False
                ) from None
            raise AuthenticationFailed(
                f"the token endpoint {place} refused the client with {e.code}{self._safe(reason)}; check "
                f"{self.option}, client id and client secret"
            ) from None
        except (OSError, ValueError, HTTPException) as e:
            why = getattr(e, "reason", None) or e
            text = self._safe(reason_of(why) if isinstance(why, Exception) else str(why))
            if isinstance(why, ssl.SSLCertVerificationError):
                raise AuthenticationFailed(f"the token endpoint {place} ({self.option}): {text}") from None
            raise EndpointUnreachable(
                f"the token endpoint {place} ({self.option})", text, silent=isinstance(why, TimeoutError)
            ) from None
        return _token_in(text, place, self.option)

    def _safe(self, text: str) -> str:
        return without_secrets(text, self.secrets)

    def _opener(self) -> OpenerDirector:
        import urllib.request

        class NoRedirects(urllib.request.HTTPRedirectHandler):
            """A redirect must not receive the header with the secret."""

            def redirect_request(self, *_: object) -> None:
                return None

        if self.tls is None:
            return urllib.request.build_opener(NoRedirects)
        context = client_context(self.tls, lambda name: f"{name} (for {self.option})")
        return urllib.request.build_opener(NoRedirects, urllib.request.HTTPSHandler(context=context))


@dataclass(frozen=True)
class FileSource:
    """A file with a token that something else renews; read at each login."""

    url: str
    option: str
    secrets: ClassVar[tuple[str, ...]] = ()

    def fetch(self, seconds: float) -> Token:
        del seconds
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path)
        try:
            return Token(found_file(path, self.option).read_text("utf-8").strip(), 0)
        except (OSError, UnicodeDecodeError) as e:
            reason = getattr(e, "strerror", None) or "it is not text"
            raise InvalidConfig(f"{self.option}: {path} cannot be read: {reason}") from None


@dataclass(frozen=True)
class FunctionSource:
    """A Python function ``module:function`` that returns a token, or a token and its expiry."""

    name: str
    option: str
    secrets: ClassVar[tuple[str, ...]] = ()

    def fetch(self, seconds: float) -> Token:
        """Call the function, without a time limit."""
        del seconds
        module, _, function = self.name.partition(":")
        try:
            found = import_module(module)
            for part in function.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as e:
            raise InvalidConfig(f"{self.option}={self.name}: there is no such function: {e}") from None
        try:
            given = found()  # type: ignore[operator]
        except Exception as e:
            # Its message may hold what the function sent, so do not show it.
            logger.debug("%s failed", self.name, exc_info=True)
            raise AuthenticationFailed(
                f"{self.option}={self.name}: the function failed with {type(e).__name__}"
            ) from None
        text, expires_at = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(text, str) or not isinstance(expires_at, int | float | None):
            raise AuthenticationFailed(
                f"{self.option}={self.name}: the function must return a token as text, or (token, seconds "
                f"since 1970 at which it expires); it returned {type(given).__name__}"
            )
        return Token(text, _expiry(text) if expires_at is None else expires_at)


def _token_in(text: bytes, place: str, option: str) -> Token:
    try:
        answer = json.loads(text)
        token = answer["access_token"]
        lasts = float(answer.get("expires_in") or 0)
        if not isinstance(token, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise AuthenticationFailed(
            f"the token endpoint {place} sent no access_token; check {option}"
        ) from None
    return Token(token, _expiry(token) or (SYSTEM_CLOCK.time_ms() / 1000 + lasts if lasts > 0 else 0))


def _expiry(token: str) -> float:
    """Expiry of a JWT (claim ``exp``); 0 for other tokens."""
    try:
        payload = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return 0.0


def _refusal(body: bytes) -> str:
    try:
        answer = json.loads(body)
        found = [str(answer[key])[:200] for key in ("error", "error_description") if answer.get(key)]
    except (ValueError, AttributeError, TypeError):
        return ""
    text = ": ".join(found)
    return f" ({text if text.isprintable() else ascii(text)})" if text else ""


CLIENT_HANDLER, LOGIN_HANDLER = "IAMClientCallbackHandler", "IAMOAuthBearerLoginCallbackHandler"
_REGION = re.compile(r"\.([a-z0-9-]+)\.(?:api\.)?amazonaws\.com(?:\.cn)?\.?$")
_DEFAULT_SESSION = "pyspark-kafkalog"


@dataclass(frozen=True)
class IamSource:
    """*Thread-safe: immutable.* The AWS identity of a client in one region."""

    region: str
    profile: str | None
    role: str | None
    session: str | None
    option: str
    secrets: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, host: str, options: Mapping[str, str], option: str) -> IamSource:
        """Identity for a broker's host name and the JAAS options. Raises `InvalidConfig` without a region."""
        if options.get("awsRoleExternalId"):
            raise InvalidConfig(
                f"{option}: awsRoleExternalId is not supported: Amazon's Python signer has none"
            )
        found = _REGION.search(host.lower())
        region = found[1] if found else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region:
            raise InvalidConfig(
                f"AWS_MSK_IAM: the host name {host} holds no AWS region; set AWS_REGION in the environment"
            )
        names = ("awsProfileName", "awsRoleArn", "awsRoleSessionName")
        profile, role, session = map(options.get, names)
        return cls(region, profile, role, session, option)

    def fetch(self, seconds: float) -> Token:
        """Sign a token locally; for a role, ask AWS within boto3's time limits."""
        del seconds
        provider = _provider()
        try:
            if self.role:
                session = self.session or _DEFAULT_SESSION
                text, expires_ms = provider.generate_auth_token_from_role_arn(self.region, self.role, session)
            elif self.profile:
                text, expires_ms = provider.generate_auth_token_from_profile(self.region, self.profile)
            else:
                text, expires_ms = provider.generate_auth_token(self.region)
        except Exception as e:
            raise AuthenticationFailed(
                f"AWS_MSK_IAM: no token for region {self.region}: {type(e).__name__}: {e}; check "
                f"{self.option} and the AWS credentials of this machine"
            ) from None
        return Token(text, expires_ms / 1000)


TokenSource = EndpointSource | FileSource | FunctionSource | IamSource
"""Hashable, as a process caches one token of each. ``option`` names it in errors."""


def _provider() -> Any:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        raise InvalidConfig(
            "sasl.mechanism=AWS_MSK_IAM needs the package aws-msk-iam-sasl-signer-python: "
            "pip install 'pyspark-kafkalog[msk]'"
        ) from None
    return MSKAuthTokenProvider
