"""A `Transport` over TLS, and explanations of failed handshakes."""

from __future__ import annotations

import ssl
from contextlib import closing, suppress
from typing import Any

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Transport, lost_or_closed, reason_of
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import (
    AuthenticationFailed,
    CannotConnect,
    ConnectionClosed,
    ConnectionLost,
    FrameTooLarge,
)
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest
from pyspark_kafkalog.protocol.exchange import encode_request
from pyspark_kafkalog.security.tls import TlsStream, client_context

_STAGE_BYTES = 262_144  # ciphertext per socket read; with 64 KiB a receiver needs a fifth more processor time
_ENCRYPTED_BYTES = 65_536  # plaintext encrypted at once: four records
_PROBE_SECONDS = 2.0
_TLS_RECORDS = (0x15, 0x16)  # first bytes of an alert and of a handshake record
_FRAME = 0  # first byte of the size of a response in plain text
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE")
_WANTS_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE")
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)  # X509_V_ERR_...: no issuer, or an untrusted self-signed certificate
_WRONG_NAME = (62, 64)
_NOT_VALID_NOW = {9: "is not yet valid", 10: "has expired"}


class TlsTransport(Transport):
    """*Not thread-safe.* A `Transport`; `start` first. A refusal is `AuthenticationFailed`, not retried."""

    def start(self, host: str, config: ClientConfig, deadline: Deadline) -> None:
        """Shake hands. Raises `AuthenticationFailed`, `ConnectionLost`, `InvalidConfig` for a bad store."""
        self._config, self._option = config, config.option_name
        context = client_context(config, config.option_name)
        stage = memoryview(bytearray(_STAGE_BYTES))
        self._stream = TlsStream(context, stage, server_hostname=host.rstrip("."))
        self._answered = False
        self._first = b""
        while True:
            try:
                done = self._stream.shake_hands()
            except ssl.SSLError as e:
                self._say_goodbye()
                raise self._refused(e) from e
            self._flush_in_time(deadline)
            if done:
                return
            self._receive_handshake(deadline)

    @property
    def unsent(self) -> bool:
        return bool(self._outgoing) or self._stream.unsent

    def _flush_in_time(self, deadline: Deadline) -> None:
        while self._stream.unsent:
            late = deadline.passed
            self._flush(max(deadline.left, 0.001))
            if late and self._stream.unsent:
                raise ConnectionLost(f"{self.peer}: the broker accepts no more data in time")

    def _receive_handshake(self, deadline: Deadline) -> None:
        option = self._option("security.protocol")
        late = deadline.passed
        try:
            self._sock.settimeout(max(deadline.left, 0.001))
            count = self._stream.receive(self._sock)
        except TimeoutError as e:
            if not late:
                return
            raise ConnectionLost(
                f"{self.peer}: no answer to the TLS handshake in time; check that {option} is this port's"
            ) from e
        except OSError as e:
            raise self._not_tls(reason_of(e)) from e
        if count == 0:
            raise self._not_tls("it closed the connection")
        self._first = self._first or bytes(self._stream.stage[:1])

    def _not_tls(self, what: str) -> CannotConnect:
        """The connection ended in the handshake: a plain port or a stopping broker. Not retried for long."""
        option = self._option("security.protocol")
        reason = (
            f"the broker ended the TLS handshake: {what}. If this port does not speak TLS, set {option} to "
            f"{_plain(self._config)}"
        )
        return CannotConnect(self.peer, reason, silent=False)

    @property
    def _has_certificate(self) -> bool:
        config = self._config
        return bool(
            config.ssl_keystore_location or config.ssl_keystore_key or config.ssl_certificate_location
        )

    def _refused(self, error: ssl.SSLError) -> AuthenticationFailed:
        reason, option = error.reason or "", self._option
        if isinstance(error, ssl.SSLCertVerificationError):
            return AuthenticationFailed(f"{self.peer}: {self._untrusted(error)}")
        if any(word in reason for word in _NO_TLS) and self._first not in (b"\x15", b"\x16"):
            return no_tls(self.peer, self._config)
        if "ALERT" in reason and any(word in reason for word in _WANTS_CERTIFICATE):
            if self._has_certificate:
                why = "does not accept this client's certificate"
            else:
                why = "wants a certificate of this client"
            where = f"{option('ssl.keystore.location')}, or {option('ssl.keystore.key')} and its chain"
            return AuthenticationFailed(f"{self.peer}: the broker {why}: see {where} ({reason})")
        if "ALERT_UNKNOWN_CA" in reason or "ALERT_CERTIFICATE" in reason:
            return AuthenticationFailed(
                f"{self.peer}: the broker does not accept this client's certificate ({reason}): see "
                f"{option('ssl.keystore.location')} and the broker's ssl.truststore.*"
            )
        if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
            return AuthenticationFailed(
                f"{self.peer}: no common version of TLS ({reason}): see {option('ssl.enabled.protocols')}"
            )
        if "HANDSHAKE_FAILURE" in reason:
            return AuthenticationFailed(
                f"{self.peer}: the broker wants a certificate of this client: see "
                f"{option('ssl.keystore.location')}; or has none of {option('ssl.cipher.suites')} ({reason})"
            )
        return AuthenticationFailed(
            f"{self.peer}: the TLS handshake failed: {reason or reason_of(error)}; see {option('ssl')}.*"
        )

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        code, config, option = error.verify_code, self._config, self._option
        if code in _WRONG_NAME:
            name = option("ssl.endpoint.identification.algorithm")
            return (
                f"the broker's certificate is of another host ({error.verify_message}): connect to a name in "
                f"it, or, if that cannot be, set {name} to an empty text"
            )
        if code in _UNKNOWN_AUTHORITY:
            if config.ssl_truststore_location:
                store = f"{option('ssl.truststore.location')}={config.ssl_truststore_location}"
            elif config.ssl_truststore_certificates:
                store = option("ssl.truststore.certificates")
            else:
                store = f"the system's authorities; set {option('ssl.truststore.location')}"
            return f"the broker's certificate is of an unknown authority ({error.verify_message}), by {store}"
        if code in _NOT_VALID_NOW:
            return f"the broker's certificate {_NOT_VALID_NOW[code]}"
        return f"the broker's certificate is refused: {error.verify_message}"

    def _say_goodbye(self) -> None:
        """Send the alert that says why, if that does not block."""
        with suppress(BlockingIOError, ConnectionLost):
            self._flush(0)

    def _flush(self, timeout: float) -> None:
        try:
            self._sock.settimeout(timeout)
            self._stream.send_some(self._sock)
        except BlockingIOError:
            raise
        except TimeoutError as e:
            raise ConnectionLost(f"{self.peer}: the broker accepts no more data") from e
        except OSError as e:
            self._look_for_refusal()
            raise lost_or_closed(e)(f"{self.peer}: connection lost while sending: {reason_of(e)}") from e

    def _look_for_refusal(self) -> None:
        """With TLS 1.3 a refused client learns why only after its handshake, perhaps from a closed socket."""
        if self._answered:
            return
        with suppress(OSError, ConnectionLost):
            self._receive_some(0)

    def _send_some(self, timeout: float) -> None:
        if not self._stream.unsent:
            try:
                self._encrypt()
            except ssl.SSLError as e:
                self._look_for_refusal()
                raise ConnectionLost(f"{self.peer}: connection lost while sending: {e.reason or e}") from e
        self._flush(timeout)

    def _encrypt(self) -> None:
        outgoing, write, stage, filled = self._outgoing, self._stream.tls.write, self._stream.stage, 0
        data = outgoing[0].cast("B") if outgoing[0].nbytes >= _ENCRYPTED_BYTES else None
        if data is not None:
            write(data[:_ENCRYPTED_BYTES])
            self._drop_encrypted(_ENCRYPTED_BYTES)
            return
        while outgoing and filled < _ENCRYPTED_BYTES:
            part = outgoing[0].cast("B")
            count = min(part.nbytes, _ENCRYPTED_BYTES - filled)
            stage[filled : filled + count] = part[:count]
            filled += count
            self._drop_encrypted(count)
        write(stage[:filled])

    def _drop_encrypted(self, count: int) -> None:
        first = self._outgoing[0].cast("B")
        if count < first.nbytes:
            self._outgoing[0] = first[count:]
        else:
            self._outgoing.popleft()

    def _receive_some(self, timeout: float) -> None:
        try:
            if self._stream.dry:
                self._sock.settimeout(timeout)
                if not self._stream.receive(self._sock):
                    raise ConnectionClosed(f"{self.peer}: the broker closed the connection{self._perhaps()}")
            self._decrypt()
        except (BlockingIOError, TimeoutError):
            raise
        except ssl.SSLError as e:
            if not self._answered:
                raise self._refused(e) from e
            raise ConnectionLost(f"{self.peer}: connection lost: {e.reason or e}") from e
        except OSError as e:
            raise lost_or_closed(e)(f"{self.peer}: connection lost: {reason_of(e)}{self._perhaps()}") from e
        except FrameTooLarge as e:
            raise FrameTooLarge(f"{self.peer}: this is not a response of a Kafka broker: {e}", e.size) from e

    def _decrypt(self) -> None:
        # Fills the reader's buffer record by record and notifies it once per fill.
        reader, stream = self._reader, self._stream
        while not stream.dry:
            # Keep no view of the buffer: a frame cannot drop its size while one exists.
            filled = stream.decrypt_into(reader.buffer())
            if filled:
                self._answered = True
                self._frames.extend(reader.received(filled))
            if stream.ended:
                if self._frames:
                    # A response and the end together, as in a refused login: the next call finds the end
                    # again.
                    return
                raise ConnectionClosed(f"{self.peer}: the broker closed the connection{self._perhaps()}")

    def _perhaps(self) -> str:
        if self._answered or self._has_certificate:
            return ""
        return f"; if it wants a client certificate, set {self._option('ssl.keystore.location')}"


def _plain(config: ClientConfig) -> str:
    return "SASL_PLAINTEXT" if config.security_protocol.startswith("SASL_") else "PLAINTEXT"


def no_tls(peer: str, config: ClientConfig) -> AuthenticationFailed:
    option = config.option_name("security.protocol")
    return AuthenticationFailed(f"{peer}: this port does not speak TLS: set {option} to {_plain(config)}")


def speaks_tls(host: str, port: int, deadline: Deadline) -> bool:
    """Whether a port that closed a plain connection answers a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing else is sent
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    return _first_answer([hello.read()], host, port, deadline) in _TLS_RECORDS


def speaks_plain(host: str, port: int, deadline: Deadline) -> bool:
    """Whether a port that ended a TLS handshake answers ApiVersions in plain text."""
    parts = encode_request(ApiVersionsRequest(), version=0, correlation_id=0, client_id="kafkalog")
    return _first_answer(parts, host, port, deadline) == _FRAME


def _first_answer(parts: list[Any], host: str, port: int, deadline: Deadline) -> int | None:
    deadline = deadline.within(_PROBE_SECONDS)
    try:
        transport = Transport.connect(host, port, deadline, max_frame_bytes=1)
    except ConnectionLost:
        return None
    with closing(transport), suppress(ConnectionLost, TimeoutError):
        transport.send(parts, deadline)
        return transport.receive_byte(deadline)
    return None
