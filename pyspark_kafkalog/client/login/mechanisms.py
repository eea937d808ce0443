"""SASL mechanisms: which one a configuration selects, its credentials, its messages, and their exchange.

A conversation is a generator that yields the client's messages, is sent the broker's, and ends with the
login; `LoginExchange` carries it in SaslHandshake and SaslAuthenticate, without I/O. Source: RFC 4616
(PLAIN), 5802 (SCRAM), 7628 (OAUTHBEARER), 4752 (GSSAPI, with the package gssapi).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_kafkalog.client.login import tokens
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.security_config import MECHANISMS, TlsConfig
from pyspark_kafkalog.errors import (
    AuthenticationFailed,
    ErrorCode,
    IllegalSaslState,
    InvalidConfig,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from pyspark_kafkalog.protocol.api.logins import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.security.jaas import JaasEntry, parse_jaas
from pyspark_kafkalog.security.references import found_file
from pyspark_kafkalog.security.scram import MECHANISMS as SCRAM
from pyspark_kafkalog.security.scram import ScramClient, ScramError

Conversation = Generator[bytes, bytes, None]
Start = Callable[[str, float], Conversation]

_EXTENSION_NAME, _EXTENSION_VALUE = re.compile(r"[A-Za-z]+"), re.compile(r"[\x21-\x7e \t\r\n]+")
_SEPARATOR = b"\x01"
_STORES = ("ssl.truststore.", "ssl.keystore.", "ssl.key.")


@dataclass(frozen=True)
class Login:
    """*Thread-safe: immutable.* How the connections of a client log in."""

    mechanism: str  # the broker's name for it: AWS_MSK_IAM is OAUTHBEARER
    start: Start = field(repr=False)
    """Starts a conversation with the broker of a host name; getting a token may take the given seconds."""
    check: str  # options with the credentials, for errors
    mechanism_option: str
    protocol_option: str
    protocol_without: str  # `security.protocol` without a login
    secrets: tuple[str, ...] = field(repr=False)


def login_of(config: ClientConfig) -> Login:
    """How to log in with SASL. Raises `InvalidConfig`, with the option to set but none of its value."""
    return _Options(config).login()


class _Options:
    """The `sasl.*` properties of a client, with the names that its user knows."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.name = config.option_name  # a property as users write it: Spark options begin with ``kafka.``
        self._entry = self._parsed(config.sasl_jaas_config)

    def login(self) -> Login:
        mechanism = (self._config.sasl_mechanism or "").strip().upper()
        if not mechanism:
            raise InvalidConfig(
                f"{self.name('sasl.mechanism')} is missing, which "
                f"{self.name('security.protocol')}={self._config.security_protocol} needs; "
                f"allowed: {', '.join(MECHANISMS)}"
            )
        self._check_handlers(mechanism)
        if mechanism == "PLAIN" or mechanism in SCRAM:
            return self._of_password(mechanism)
        if mechanism == "OAUTHBEARER":
            handler = _class_name(self._config.sasl_login_callback_handler_class)
            return self._of_msk() if handler == tokens.LOGIN_HANDLER else self._of_token()
        if mechanism == "AWS_MSK_IAM":
            return self._of_msk()
        if mechanism == "GSSAPI":
            return self._of_kerberos()
        raise InvalidConfig(
            f"{self.name('sasl.mechanism')}={mechanism[:40]} is not allowed; allowed: {', '.join(MECHANISMS)}"
        )

    def _of_password(self, mechanism: str) -> Login:
        config, jaas = self._config, self._jaas
        user = jaas.get("username", config.sasl_username)
        password = jaas.get("password", config.sasl_password)
        if user is None or password is None:
            missing = "username" if user is None else "password"
            raise InvalidConfig(
                f"{self.name('sasl.jaas.config')} has no {missing}, which {mechanism} needs"
                if jaas or self._entry is not None
                else f"{self.name('sasl.jaas.config')} is missing, which {mechanism} needs; or set "
                f"{self.name('sasl.username')} and {self.name('sasl.password')}"
            )
        for what, value in (("username", user), ("password", password)):
            if not value or "\0" in value:
                raise InvalidConfig(f"{self._place}: the {what} is empty or holds a NUL character")
        if mechanism == "PLAIN":
            return self._made(mechanism, lambda *_: plain(user, password), self._place, (password,))
        token = self._entry is not None and self._entry.is_true("tokenauth")
        return self._made(
            mechanism, lambda *_: scram(mechanism, user, password, token), self._place, (password,)
        )

    def _of_token(self) -> Login:
        config, jaas = self._config, self._jaas
        extensions = {
            key.removeprefix("extension_"): value
            for key, value in jaas.items()
            if key.startswith("extension_")
        }
        for pair in (config.sasl_oauthbearer_extensions or "").split(","):
            if pair.strip():
                key, _, value = pair.strip().partition("=")
                extensions[key] = value
        for key, value in extensions.items():
            if not _EXTENSION_NAME.fullmatch(key) or key == "auth" or not _EXTENSION_VALUE.fullmatch(value):
                raise InvalidConfig(
                    f"{self.name('sasl.oauthbearer.extensions')}: an extension is key=value, its key of "
                    "letters only and not auth"
                )
        source = self._token_source()
        return self._made(
            "OAUTHBEARER",
            lambda _, seconds: bearer(tokens.current(source, seconds), extensions),
            source.option,
            source.secrets,
        )

    def _token_source(self) -> tokens.TokenSource:
        config, jaas = self._config, self._jaas
        handler = config.sasl_login_callback_handler_class or ""
        if ":" in handler:
            return tokens.FunctionSource(handler, self.name("sasl.login.callback.handler.class"))
        option = self.name("sasl.oauthbearer.token.endpoint.url")
        # Strimzi's JAAS options begin with oauth.
        url = config.sasl_oauthbearer_token_endpoint_url or jaas.get("oauth.token.endpoint.uri")
        if not url:
            raise InvalidConfig(
                f"{option} is missing, which OAUTHBEARER needs: the address that grants tokens, or "
                f"file:/path of one; or set {self.name('sasl.login.callback.handler.class')} to a function, "
                "module:function"
            )
        if url.startswith("file:"):
            return tokens.FileSource(url, option)
        if not url.startswith(("https://", "http://")):
            raise InvalidConfig(f"{option} is not allowed; allowed: https://..., http://... or file:/path")
        client_id = config.sasl_oauthbearer_client_id or jaas.get("clientId") or jaas.get("oauth.client.id")
        in_jaas = jaas.get("clientSecret") or jaas.get("oauth.client.secret")
        secret = config.sasl_oauthbearer_client_secret or in_jaas
        if not client_id or not secret:
            prefix = "sasl.oauthbearer.client.credentials.client"
            raise InvalidConfig(
                f"{self.name('sasl.jaas.config')} has no {'clientSecret' if client_id else 'clientId'}, "
                f"which the token endpoint needs; or set {self.name(f'{prefix}.id')} and "
                f"{self.name(f'{prefix}.secret')}"
            )
        scope = config.sasl_oauthbearer_scope or jaas.get("scope") or jaas.get("oauth.scope")
        return tokens.EndpointSource(
            url, client_id, secret, scope, config.sasl_oauthbearer_header_urlencode, option, self._tls()
        )

    def _tls(self) -> TlsConfig | None:
        """Stores for the token endpoint, read from the JAAS entry as in Kafka."""
        stores = {key: value for key, value in self._jaas.items() if key.startswith(_STORES)}
        return parse(TlsConfig, stores, source=self.name("sasl.jaas.config")) if stores else None

    def _of_msk(self) -> Login:
        options = dict(self._jaas)
        place = self.name("sasl.jaas.config")

        def start(host: str, seconds: float) -> Conversation:
            return bearer(tokens.current(tokens.IamSource.of(host, options, place), seconds), {})

        check = f"the AWS credentials that {place} selects, and that they may connect to the cluster"
        return self._made("OAUTHBEARER", start, check, ())

    def _of_kerberos(self) -> Login:
        config, jaas = self._config, self._jaas
        service = jaas.get("serviceName") or config.sasl_kerberos_service_name
        if not service:
            raise InvalidConfig(
                f"{self.name('sasl.kerberos.service.name')} is missing, which GSSAPI needs: the service of "
                "the brokers' principals, often kafka"
            )
        uses_keytab = self._entry is None or self._entry.is_true("useKeyTab")
        keytab = (jaas.get("keyTab") if uses_keytab else None) or config.sasl_kerberos_keytab
        principal = jaas.get("principal") or config.sasl_kerberos_principal
        option = self._place if self._entry is not None else self.name("sasl.kerberos.keytab")
        identity = KerberosIdentity(service, principal, keytab, jaas.get("ticketCache"), option)
        return self._made("GSSAPI", lambda host, _: gssapi_login(identity, host), identity.option, ())

    def _made(self, mechanism: str, start: Start, check: str, secrets: tuple[str, ...]) -> Login:
        return Login(
            mechanism=mechanism,
            start=start,
            check=check,
            mechanism_option=self.name("sasl.mechanism"),
            protocol_option=self.name("security.protocol"),
            protocol_without="SSL" if self._config.security_protocol == "SASL_SSL" else "PLAINTEXT",
            secrets=secrets,
        )

    @property
    def _jaas(self) -> Mapping[str, str]:
        return self._entry.options if self._entry is not None else {}

    @property
    def _place(self) -> str:
        if self._entry is not None:
            return self.name("sasl.jaas.config")
        return f"{self.name('sasl.username')} and {self.name('sasl.password')}"

    def _parsed(self, text: str | None) -> JaasEntry | None:
        if text is None or not text.strip():
            return None
        try:
            return parse_jaas(text)
        except ValueError as e:
            raise InvalidConfig(f"{self.name('sasl.jaas.config')}: {e}") from None

    def _check_handlers(self, mechanism: str) -> None:
        """Refuse Java classes without a counterpart here: the login would differ without them."""
        config = self._config
        given = {
            "sasl.login.callback.handler.class": config.sasl_login_callback_handler_class,
            "sasl.client.callback.handler.class": config.sasl_client_callback_handler_class,
            "sasl.oauthbearer.jwt.retriever.class": config.sasl_oauthbearer_jwt_retriever_class,
        }
        for name, value in given.items():
            known = _HANDLERS[name]
            if value and not (":" in value and "login" in name) and _class_name(value) not in known:
                raise InvalidConfig(
                    f"{self.name(name)}={value[:100]} is a Java class, which Python cannot use; "
                    f"known here: {', '.join(known)}"
                )
        method = config.sasl_oauthbearer_method
        if mechanism == "OAUTHBEARER" and method and method.lower() not in ("oidc", "default"):
            raise InvalidConfig(
                f"{self.name('sasl.oauthbearer.method')} is not allowed; allowed: oidc, default"
            )


_HANDLERS = {
    "sasl.login.callback.handler.class": (
        "OAuthBearerLoginCallbackHandler", "JaasClientOauthLoginCallbackHandler", tokens.LOGIN_HANDLER,
    ),
    "sasl.client.callback.handler.class": (tokens.CLIENT_HANDLER,),
    "sasl.oauthbearer.jwt.retriever.class": (
        "ClientCredentialsJwtRetriever", "FileJwtRetriever", "DefaultJwtRetriever",
    ),
}  # fmt: skip
"""Class names (last part) whose work is done here."""


def _class_name(name: str | None) -> str:
    return (name or "").strip().rpartition(".")[2]


def plain(user: str, password: str) -> Conversation:
    yield b"\0".join((b"", user.encode(), password.encode()))


def scram(mechanism: str, user: str, password: str, token: bool) -> Conversation:
    client = ScramClient(mechanism, user, password, token=token)
    server_final = yield client.final((yield client.first()))
    client.verify(server_final)


def bearer(token: str, extensions: Mapping[str, str]) -> Conversation:
    """OAUTHBEARER. A refusal comes as JSON, which the client confirms to get the error itself."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise AuthenticationFailed("the OAuth token is empty, or has characters that no token has")
    pairs = {"auth": f"Bearer {token}", **extensions}
    fields = [f"{key}={value}".encode() for key, value in pairs.items()]
    if (yield _SEPARATOR.join((b"n,,", *fields, b"", b""))):
        yield _SEPARATOR


_NO_LAYER = 1  # we use no security layer; TLS protects the connection


@dataclass(frozen=True)
class KerberosIdentity:
    """*Thread-safe: immutable.* Client and service; without ``keytab`` the ticket cache decides."""

    service: str
    principal: str | None
    keytab: str | None
    ticket_cache: str | None
    option: str


def gssapi_login(identity: KerberosIdentity, host: str) -> Conversation:
    """GSSAPI with ``host``, whose principal is ``service/host``."""
    gssapi = _library()
    try:
        name = gssapi.Name(f"{identity.service}@{host}", gssapi.NameType.hostbased_service)
        flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
        context = gssapi.SecurityContext(
            name=name, creds=_credentials(gssapi, identity), usage="initiate", flags=flags
        )
        token = context.step()
        while not context.complete:
            token = context.step((yield token or b""))
        offer = context.unwrap((yield token or b"")).message
        if len(offer) != 4 or not offer[0] & _NO_LAYER:
            raise AuthenticationFailed("GSSAPI: the broker wants a security layer; use SASL_SSL")
        reply = bytes((_NO_LAYER, 0, 0, 0)) + str(context.initiator_name).encode()
        yield context.wrap(reply, False).message
    except gssapi.exceptions.GSSError as e:
        raise AuthenticationFailed(
            f"GSSAPI: no Kerberos login to {identity.service}/{host}: {' '.join(str(e).split())}; check "
            f"{identity.option} and that the client has a key tab or a ticket (kinit)"
        ) from None


def _credentials(gssapi: Any, identity: KerberosIdentity) -> Any:
    """The client's credentials; with a key tab, in a memory cache of this process."""
    name, store = None, None
    if identity.principal:
        name = gssapi.Name(identity.principal, gssapi.NameType.kerberos_principal)
    if identity.keytab:
        keytab = found_file(identity.keytab, identity.option)
        store = {"client_keytab": f"FILE:{keytab}", "ccache": "MEMORY:pyspark-kafkalog"}
        if identity.principal:
            store["ccache"] += "-" + identity.principal.replace("/", "_")
    elif identity.ticket_cache:
        store = {"ccache": f"FILE:{identity.ticket_cache}"}
    return gssapi.Credentials(usage="initiate", name=name, store=store)


def _library() -> Any:
    try:
        import gssapi
    except (ImportError, OSError):
        raise InvalidConfig(
            "sasl.mechanism=GSSAPI needs the package gssapi and the system's Kerberos library: "
            "pip install 'pyspark-kafkalog[kerberos]' (to build it: libkrb5-dev and a C compiler)"
        ) from None
    return gssapi


class LoginExchange:
    """*Not thread-safe: one login of one connection.* Call `begin`, then `answered` for each response."""

    def __init__(self, login: Login, peer: str, host: str, seconds: float) -> None:
        """Prepare the first message in ``seconds``. Raises `ConnectionLost` if there is no token now."""
        self._login, self._peer = login, peer
        self._conversation: Generator[bytes, bytes, None] = login.start(host, seconds)
        self._message: bytes | None = next(self._conversation)
        self.lifetime_ms = 0  # after the login: milliseconds until the next one is required; 0 for never

    def begin(self, *, bare: bool = False) -> SaslHandshakeRequest:
        """The first request. ``bare``: for a broker before Kafka 1.0, which cannot end a GSSAPI login."""
        if bare and self._login.mechanism == "GSSAPI":
            raise UnsupportedVersion(
                f"{self._peer}: {self._login.mechanism} needs brokers of Kafka 1.0 or later"
            )
        return SaslHandshakeRequest(mechanism=self._login.mechanism)

    def answered(self, response: Any) -> SaslAuthenticateRequest | None:
        """The next request; None once logged in. Raises `AuthenticationFailed`."""
        if isinstance(response, SaslHandshakeResponse):
            self._check_handshake(response)
        else:
            self._take(response)
        return None if self._message is None else SaslAuthenticateRequest(auth_bytes=self._message)

    def answered_bare(self, token: bytes) -> SaslAuthenticateRequest | None:
        """As `answered`, for brokers before Kafka 1.0, whose login messages have no Kafka header."""
        return self.answered(SaslAuthenticateResponse(auth_bytes=token))

    def refused_without_a_word(self, reason: str) -> AuthenticationFailed:
        """The error for such a broker, which refuses a login by closing the connection."""
        login = self._login
        return AuthenticationFailed(
            f"{reason} within the {login.mechanism} login, as brokers before Kafka 1.0 refuse one; check "
            f"{login.check}"
        )

    def _check_handshake(self, response: SaslHandshakeResponse) -> None:
        login = self._login
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            served = ", ".join(response.mechanisms) or "none"
            raise UnsupportedSaslMechanism(
                f"{self._peer}: the broker does not support {login.mechanism}; it supports {served}. "
                f"Set {login.mechanism_option}"
            )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise IllegalSaslState(
                f"{self._peer}: this listener has no SASL: connect to another port, or set "
                f"{login.protocol_option} to {login.protocol_without}"
            )
        if response.error_code != ErrorCode.NONE:
            raise AuthenticationFailed(f"{self._peer}: SaslHandshake failed: {response.error_code.name}")

    def _take(self, response: SaslAuthenticateResponse) -> None:
        login = self._login
        if response.error_code != ErrorCode.NONE:
            said = response.error_message or response.error_code.name
            said = tokens.without_secrets(said, login.secrets)
            raise AuthenticationFailed(
                f"{self._peer}: the broker refused the {login.mechanism} login: {said}; check {login.check}"
            )
        try:
            self._message = self._conversation.send(response.auth_bytes)
        except StopIteration:
            self._message, self.lifetime_ms = None, max(response.session_lifetime_ms, 0)
        except ScramError as e:
            reason = tokens.without_secrets(str(e), login.secrets)
            raise AuthenticationFailed(
                f"{self._peer}: the {login.mechanism} login failed: {reason}; check {login.check}"
            ) from None
