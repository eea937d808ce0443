"""The server's end of TLS on one connection: limits, turns, and what a failed handshake means."""

from __future__ import annotations

import socket
import ssl

from kafkalog_broker.network.reply import Transmission
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.security.tls_stream import TlsStream

STAGE_BYTES = 65536
"""Ciphertext of one read of the socket, and plaintext that is encrypted at once: four records."""

HANDSHAKE_BYTES = 65536
"""What a client may send before its handshake is done. Certificate chains have some KiB."""

_HANDSHAKE_STEP_BYTES = 4096
_READ_BYTES = 262_144
"""Decrypted in one call: some 0.3 ms."""

_SENT_BYTES = 1 << 20
"""Encrypted before other connections have their turn, some 1 ms: a usual answer is sent in one turn, and the
selector is not asked. With a quarter of it fetches of 1 MiB cost a twentieth more.
"""

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
"""What the reasons of OpenSSL mean for who runs the broker."""


class HandshakeFailed(KafkaError):
    """No TLS with this client; the message says why."""

    code = ErrorCode.NETWORK_EXCEPTION


class ServerTls(TlsStream):
    """*Not thread-safe: owned by the processor thread of its connection.*

    Memory: at most ``STAGE_BYTES`` of ciphertext in each direction beside OpenSSL's own.
    """

    __slots__ = ("_handshake_bytes", "established")

    def __init__(self, context: ssl.SSLContext, stage: memoryview) -> None:
        """``stage`` has `STAGE_BYTES` and is the thread's."""
        super().__init__(context, stage, server_side=True)
        self._handshake_bytes = 0
        self.established = False
        """Whether the handshake is done."""

    @property
    def readable(self) -> bool:
        """Whether there may be bytes to decrypt that the selector knows nothing of."""
        return self.established and not self.dry

    def handshake(self, sock: socket.socket) -> bool:
        """Go on with the handshake as far as the client has sent it; True once it is done.

        Raises:
            HandshakeFailed: it cannot succeed any more; the client is told by an alert, if it listens.
            OSError: the connection broke.
        """
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
        """Like that of a non-blocking socket: bytes put into ``buffer``, 0 at the end of the stream.

        More than one record is read where there are more. Raises `BlockingIOError` where there is nothing,
        and `OSError`, `ssl.SSLError` among it, where the connection cannot go on.
        """
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
        """Take in what the socket has; True once it has nothing more."""
        try:
            count = self.receive(sock)
        except BlockingIOError:
            return True
        self.ended = not count
        return count < len(self.stage)

    def send(self, sock: socket.socket, transmission: Transmission) -> bool:
        """Encrypt and send what ``sock`` takes now; True once everything is sent. Raises as `Transmission`.

        Encrypts nothing while ciphertext is unsent, and no more in one call than what gives others a turn:
        a socket that takes more is writable at once.
        """
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
        """Send the ciphertext that the socket takes now; True once none is left. Raises `OSError`."""
        try:
            while self._unsent is not None or self._outgoing.pending:
                self.send_some(sock)
        except BlockingIOError:
            return False
        return True

    def end(self, sock: socket.socket) -> None:
        """Tell the client that nothing was cut off, if that costs no wait."""
        if not self.established or self.unsent:
            return
        try:
            self.tls.unwrap()
        except OSError:
            pass  # its own goodbye is not waited for
        try:
            self.flush(sock)
        except OSError:
            pass  # it is gone
