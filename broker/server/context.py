"""What a handler gets besides its request: the broker's parts, and the way back to the client."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.config import BrokerConfig
from broker.group.coordinator import OffsetCoordinator
from broker.log.manager import LogManager
from broker.metrics import Metrics
from broker.network.reply import Reply
from broker.server.delayed_fetch import DelayedFetches
from broker.server.topics import Topics
from broker.transaction.producer_ids import ProducerIds
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.protocol.headers import RequestHeader

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """*Thread-safe: every part is.* The broker's parts, as the handlers see them.

    ``endpoint`` tells host and port that clients are to use; it is a call because port 0 becomes a number
    only when the socket is bound.
    """

    config: BrokerConfig
    clock: Clock
    metrics: Metrics
    logs: LogManager
    topics: Topics
    fetches: DelayedFetches
    offsets: OffsetCoordinator
    producer_ids: ProducerIds
    cluster_id: str
    endpoint: Callable[[], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Context:
    """One request's surroundings. ``answer`` is for handlers that returned `LATER`, from any thread."""

    services: Services
    header: RequestHeader
    reply: Reply
    answer: Callable[[Any], None]

    @property
    def version(self) -> int:
        """The version of the API that the client asked in, and is answered in."""
        return self.header.api_version

    def refused(self, error: KafkaError) -> ErrorCode:
        """The code that answers ``error``, counted; its text goes to the log where the answer has no room."""
        api = ApiKey(self.header.api_key).name
        self.services.metrics.request_errors(api, error.code.name).inc()
        _log.debug("%s of %s (%s) refused: %s", api, self.header.client_id, self.reply.peer, error)
        return error.code
