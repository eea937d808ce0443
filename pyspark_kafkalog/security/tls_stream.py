"""One side of a TLS connection, between the bytes of its socket and those of the application.

It is an `ssl.MemoryBIO` on each side and no `ssl.SSLSocket`: ciphertext leaves with partial sends like any
other bytes, and all that has been received can be read before the selector is asked again.
"""

from __future__ import annotations

import socket
import ssl
from typing import cast


class TlsStream:
    """*Not thread-safe: one thread at a time.* Does not wait: the socket's own timeout applies."""

    __slots__ = ("_incoming", "_outgoing", "_unsent", "dry", "ended", "stage", "tls")

    def __init__(
        self,
        context: ssl.SSLContext,
        stage: memoryview,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        """``stage`` takes the ciphertext of one read; it is empty between two calls, and may be shared."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.stage = stage
        self._unsent: memoryview | None = None
        self.dry = True
        """Whether nothing can be decrypted until more is received."""
        self.ended = False
        """Whether the peer has said goodbye."""

    @property
    def unsent(self) -> bool:
        """Whether ciphertext waits for room in the socket."""
        return self._unsent is not None or self._outgoing.pending > 0

    def shake_hands(self) -> bool:
        """Continue the handshake with what was received; True once it is done. Raises `ssl.SSLError`."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.dry = False
        return True

    def receive(self, sock: socket.socket, most_bytes: int = 0) -> int:
        """Take the ciphertext of one read, by default as much as fits the stage; its size, 0 at the end."""
        count = sock.recv_into(self.stage, most_bytes)
        if count:
            self._incoming.write(self.stage[:count])
            self.dry = False
        return count

    def decrypt_into(self, buffer: memoryview) -> int:
        """Fill ``buffer``, record by record; fewer bytes only if `dry` or `ended`. Raises `ssl.SSLError`."""
        read, filled, room = self.tls.read, 0, len(buffer)
        try:
            while filled < room and not self.ended:
                # Typeshed asks for a bytearray; any writable buffer is taken.
                count = cast("int", read(room - filled, cast("bytearray", buffer[filled:])))
                filled += count
                self.ended = not count
        except ssl.SSLWantReadError:
            self.dry = True
        return filled

    def send_some(self, sock: socket.socket) -> None:
        """Send what the socket takes of the unsent ciphertext in one call, and keep the rest. Call it only
        while there is some. Raises what the socket's ``send`` raises.
        """
        unsent = self._unsent
        if unsent is None:
            unsent = self._unsent = memoryview(self._outgoing.read())
        sent = sock.send(unsent)
        self._unsent = unsent[sent:] if sent < len(unsent) else None
