"""Server side of TLS on one connection: limits, turns, and handshake errors."""

from __future__ import annotations

import socket
import ssl

from kafkalog_broker.network.reply import Transmission
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.security.tls import TlsStream

STAGE_BYTES = 65536
"""Ciphertext per socket read, and plaintext encrypted at once: four records."""

HANDSHAKE_BYTES = 65536
"""Limit of a client's handshake. Certificate chains have some KiB."""

_HANDSHAKE_STEP_BYTES = 4096
_READ_BYTES = 262_144
"""Decrypted per call, about 0.3 ms."""

_SENT_BYTES = 1 << 20
"""Encrypted per turn, about 1 ms. With a quarter of this, 1 MiB fetches took 5% longer."""

_HANDSHAKE_RECORD = 0x16

_ADVICE = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it sent no certificate, and ssl.client.auth=required",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of an authority in ssl.truststore.*",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust this listener's certificate (its ssl.truststore.*)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not trust this listener's certificate, or its name",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not trust this listener's certificate, or its name",
    "NO_SHARED_CIPHER": "it has no cipher in common with ssl.cipher.suites",
    "UNSUPPORTED_PROTOCOL": "it speaks none of ssl.enabled.protocols",
    "VERSION_TOO_LOW": "it speaks none of ssl.enabled.protocols",
}


class HandshakeFailed(KafkaError):
    """The TLS handshake failed; the message says why."""

    code = ErrorCode.NETWORK_EXCEPTION


class ServerTls(TlsStream):
    """*Not thread-safe: owned by its connection's processor thread.* Buffers ``STAGE_BYTES`` each way."""

    __slots__ = ("_handshake_bytes", "established")

    def __init__(self, context: ssl.SSLContext, stage: memoryview) -> None:
        """``stage``: a buffer of `STAGE_BYTES`, shared by the thread."""
        super().__init__(context, stage, server_side=True)
        self._handshake_bytes = 0
        self.established = False

    @property
    def readable(self) -> bool:
        """Whether there may be data to decrypt that the selector does not see."""
        return self.established and not self.dry

    def handshake(self, sock: socket.socket) -> bool:
        """Continue the handshake; True once done. Raises `HandshakeFailed` (alert sent); `OSError`."""
        while not self.established:
            if not self._receive_handshake(sock):
                break
            try:
                self.established = self.shake_hands()
            except ssl.SSLError as e:
                self.flush(sock)
                raise HandshakeFailed(_ADVICE.get(e.reason or "", f"{e.reason or e}")) from e
            if not self.flush(sock):
                break
        return self.established

    def _receive_handshake(self, sock: socket.socket) -> bool:
        try:
            count = self.receive(sock, _HANDSHAKE_STEP_BYTES)
        except BlockingIOError:
            return False
        if not count:
            raise ConnectionResetError("the connection ended within the TLS handshake")
        if not self._handshake_bytes and self.stage[0] != _HANDSHAKE_RECORD:
            raise HandshakeFailed("it does not speak TLS: its security.protocol must be SSL or SASL_SSL here")
        self._handshake_bytes += count
        if self._handshake_bytes > HANDSHAKE_BYTES:
            raise HandshakeFailed(f"its TLS handshake is longer than {HANDSHAKE_BYTES} bytes")
        return True

    def recv_into(self, sock: socket.socket, buffer: memoryview) -> int:
        """As a non-blocking socket's ``recv_into``, but reads several records if there are more."""
        filled, room, empty = 0, min(len(buffer), _READ_BYTES), False
        while filled < room and not self.ended:
            if self.dry:
                if empty:
                    break
                empty = self._receive_more(sock)
                continue
            filled += self.decrypt_into(buffer[filled:room])
        if not filled and not self.ended:
            raise BlockingIOError
        return filled

    def _receive_more(self, sock: socket.socket) -> bool:
        try:
            count = self.receive(sock)
        except BlockingIOError:
            return True
        self.ended = not count
        return count < len(self.stage)

    def send(self, sock: socket.socket, transmission: Transmission) -> bool:
        """Encrypt and send what ``sock`` takes now; True once all is sent. Does a limited amount per turn."""
        stage = self.stage
        for _ in range(_SENT_BYTES // STAGE_BYTES + 1):
            if not self.flush(sock):
                return False
            count = transmission.read_into(stage)
            if not count:
                return True
            self.tls.write(stage[:count])
        self.flush(sock)
        return False

    def flush(self, sock: socket.socket) -> bool:
        """Send pending ciphertext; True once all is sent. Raises `OSError`."""
        try:
            while self._unsent is not None or self._outgoing.pending:
                self.send_some(sock)
        except BlockingIOError:
            return False
        return True

    def end(self, sock: socket.socket) -> None:
        """Send a close notification unless it would block."""
        if not self.established or self.unsent:
            return
        try:
            self.tls.unwrap()
        except OSError:
            pass  # do not wait for its close notification
        try:
            self.flush(sock)
        except OSError:
            pass  # the client is gone
