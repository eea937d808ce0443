"""Between a secured listener's network and its handler: admits clients after TLS and SASL."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.network.processor import RequestHandler
from kafkalog_broker.network.reply import Part, Reply
from kafkalog_broker.security.authentication import Login, LoginStep, Mechanism, Verdict
from kafkalog_broker.security.mapping_rules import Rule, subject_of, user_of
from kafkalog_broker.security.principal import ANONYMOUS, USER, Principal, Session
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


class CertificateRefused(KafkaError):
    """No rule maps the name in a client's certificate to a user."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class SecuredSession(Session):
    """*Not thread-safe: as `Session`.* Admitted after its TLS handshake, its login, or both."""

    __slots__ = ("_rules", "admitted", "login")

    def __init__(self, host: str, listener: str, login: Login | None, rules: Sequence[Rule]) -> None:
        """Without a ``login`` the ``rules`` map the certificate's name to the client's principal."""
        super().__init__(host, listener)
        self.login = login
        self._rules = rules
        self.admitted = False

    def secured(self, tls: ssl.SSLObject) -> None:
        """Take the principal from the finished TLS handshake. Raises `CertificateRefused`."""
        if self.login is not None:
            return
        name = subject_of(tls.getpeercert(binary_form=True))
        if name is None:
            self.principal = ANONYMOUS
        else:
            user = user_of(name, self._rules)
            if user is None:
                raise CertificateRefused(f"no rule of ssl.principal.mapping.rules matches {name!r}")
            self.principal = Principal(USER, user)
        self.admitted = True


class LoginGate:
    """*Thread-safe: its only state is in sessions, each in its processor's thread.*

    The handler of a SASL listener: passes requests to the ``handler`` once their client has logged in.
    """

    def __init__(
        self,
        handler: RequestHandler,
        mechanisms: Mapping[str, Mechanism],
        *,
        clock: Clock,
        metrics: Metrics,
        after: Callable[[float, Callable[[], object]], object],
        delay_seconds: float,
    ) -> None:
        """``after`` runs a function in another thread after some seconds: for answers to failed logins."""
        self._handler = handler
        self._mechanisms = mechanisms
        self._clock = clock
        self._metrics = metrics
        self._after = after
        self._delay_seconds = delay_seconds

    def login(self) -> Login:
        """For a new connection."""
        return Login(self._mechanisms)

    def __call__(self, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        """Handle one request in a processor's thread; never raises for a client's input."""
        session: SecuredSession = reply.session
        login = session.login
        if login is None:
            raise RuntimeError("a SASL listener's session has a login")
        if login.is_in(frame) and (login.expires is None or self._clock.monotonic() < login.expires):
            return self._handler(frame, reply)
        if login.may_block:
            # Nothing else touches the login while a worker asks the mechanism.
            reply.work_on(partial(self._work, login, frame, reply))
            return None
        return self._act(self._judged(login, frame), login, frame, reply)

    def _judged(self, login: Login, frame: bytearray) -> LoginStep:
        return login.take(frame, self._clock.monotonic(), self._clock.time_ms())

    def _work(self, login: Login, frame: bytearray, reply: Reply) -> None:
        parts = self._act(self._judged(login, frame), login, frame, reply)
        if parts is not None:
            reply.send(parts)

    def _act(self, step: LoginStep, login: Login, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        session: SecuredSession = reply.session
        if step.verdict is Verdict.SERVE:
            return self._handler(frame, reply)
        if step.verdict is Verdict.REFUSE:
            self._metrics.logins(session.listener, login.mechanism, "failed").inc()
            _log.info("login from %s at %s failed: %s", reply.peer, session.listener, step.why)
            last = partial(reply.send_last, step.parts) if step.parts is not None else reply.close
            if self._delay_seconds:
                self._after(self._delay_seconds, last)
            else:
                last()
            return None
        if step.accepted and login.principal is not None:
            session.principal, session.admitted = login.principal, True
            self._metrics.logins(session.listener, login.mechanism, "succeeded").inc()
            _log.debug("%s logged in from %s at %s", login.principal, reply.peer, session.listener)
        return step.parts
