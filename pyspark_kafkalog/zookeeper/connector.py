"""Connections to ZooKeeper, made for kazoo."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.zookeeper.protection import what_failed

_log = logging.getLogger(__name__)


class Connector(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is not typed
    """Connects with our own TLS context, since kazoo's reads PEM files only.

    A connection and the first response on it may each take ``answer_seconds``. kazoo would wait for the
    session timeout, but a starting server (ZooKeeper 3.9, while it reads its data) may accept a connection
    and neither answer nor close it. ``problem`` says why the latest attempt led to no session.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext] | None,
        answer_seconds: float,
        connecting: Callable[[], object],
    ) -> None:
        super().__init__()
        self._context = context
        self._answer_seconds = answer_seconds
        self._connecting = connecting
        self.answered = False
        """Whether the newest connection has a session; set by the session."""
        self.problem = "no address is known for its name"

    def create_connection(self, *arguments: Any, **given: Any) -> Any:
        self._connecting()
        self.answered = False
        given["timeout"] = min(given["timeout"], self._answer_seconds)
        try:
            if self._context is None:
                made = super().create_connection(*arguments, **given)
            else:
                made = self._secured(self._context(), given["address"], given["hostname"], given["timeout"])
        except (OSError, KafkaError) as e:
            self.problem = what_failed(e, given["hostname"])
            _log.debug("no connection to ZooKeeper: %s", self.problem)
            raise OSError(self.problem) from e
        self.problem = (
            "it ended the connection: is this a port for TLS (zookeeper.ssl.client.enable=true)?"
            if self._context is None
            else "it ended the connection: does it want a certificate (zookeeper.ssl.keystore.location)?"
        )
        return made

    def _secured(
        self, context: ssl.SSLContext, address: tuple[str, int], host: str, timeout: float
    ) -> ssl.SSLSocket:
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        # The system's select does not see bytes that TLS has already decrypted.
        if not self.answered and timeout is not None:
            timeout = min(timeout, self._answer_seconds)
        waiting = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        ready, *others = super().select(readers, writers, errors, 0 if waiting else timeout)
        return ([*ready, *(each for each in waiting if each not in ready)], *others)
