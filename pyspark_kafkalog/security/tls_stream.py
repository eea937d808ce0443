"""One side of a TLS connection, between its socket and the application.

Uses `ssl.MemoryBIO` instead of `ssl.SSLSocket`: ciphertext can be sent partially like other bytes, and all
received data can be read before asking the selector again.
"""

from __future__ import annotations

import socket
import ssl
from typing import cast


class TlsStream:
    """*Not thread-safe.* Does not wait; the socket's timeout applies."""

    __slots__ = ("_incoming", "_outgoing", "_unsent", "dry", "ended", "stage", "tls")

    def __init__(
        self,
        context: ssl.SSLContext,
        stage: memoryview,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        """``stage`` holds the ciphertext of one read. It is empty between calls and may be shared."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.stage = stage
        self._unsent: memoryview | None = None
        self.dry = True
        """Whether nothing can be decrypted until more is received."""
        self.ended = False
        """Whether the peer has closed TLS."""

    @property
    def unsent(self) -> bool:
        """Whether ciphertext waits for the socket."""
        return self._unsent is not None or self._outgoing.pending > 0

    def shake_hands(self) -> bool:
        """Continue the handshake; True once done. Raises `ssl.SSLError`."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.dry = False
        return True

    def receive(self, sock: socket.socket, most_bytes: int = 0) -> int:
        """Read ciphertext once, by default up to the size of the stage; returns its size, 0 at the end."""
        count = sock.recv_into(self.stage, most_bytes)
        if count:
            self._incoming.write(self.stage[:count])
            self.dry = False
        return count

    def decrypt_into(self, buffer: memoryview) -> int:
        """Fill ``buffer``; returns fewer bytes only if `dry` or `ended`. Raises `ssl.SSLError`."""
        read, filled, room = self.tls.read, 0, len(buffer)
        try:
            while filled < room and not self.ended:
                # Typeshed wants a bytearray; any writable buffer works.
                count = cast("int", read(room - filled, cast("bytearray", buffer[filled:])))
                filled += count
                self.ended = not count
        except ssl.SSLWantReadError:
            self.dry = True
        return filled

    def send_some(self, sock: socket.socket) -> None:
        """Send unsent ciphertext in one call and keep the rest; call it only if `unsent`."""
        unsent = self._unsent
        if unsent is None:
            unsent = self._unsent = memoryview(self._outgoing.read())
        sent = sock.send(unsent)
        self._unsent = unsent[sent:] if sent < len(unsent) else None
