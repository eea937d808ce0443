"""A listener's certificates as a TLS context, reloaded when their files are replaced."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from kafkalog_broker.config.listener_config import ListenerConfig
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.security.tls import server_context

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]


class ListenerCertificates:
    """*Thread-safe: one thread calls `renew`; ``context`` is replaced as a whole.*"""

    def __init__(self, listener: str, config: ListenerConfig) -> None:
        """Raises `InvalidConfig`: there is no certificate, or it cannot be read."""
        self._listener = listener
        self._config = config
        self._stamp = self._look()
        self.context = self._made()

    def renew(self) -> None:
        """Reload replaced files. Logs an unusable one, and keeps the old context."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.context = self._made()
        except (KafkaError, OSError) as e:
            _log.error("listener %s keeps its old certificates: %s", self._listener, e)
        else:
            _log.info("listener %s has new certificates", self._listener)

    def _made(self) -> ssl.SSLContext:
        try:
            return server_context(self._config)
        except InvalidConfig as e:
            raise InvalidConfig(f"listener {self._listener}: {e}") from e

    def _look(self) -> _Stamp:
        paths = (self._config.ssl_keystore_location, self._config.ssl_truststore_location)
        return tuple(_stamp(path) if path is not None else None for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
