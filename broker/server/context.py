"""What a handler gets besides its request: the broker's parts, and the way back to the client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from broker.config import BrokerConfig
from broker.group.coordinator import OffsetCoordinator
from broker.metrics import Metrics
from broker.network.reply import Reply
from broker.network.transmission import Part
from broker.server.delayed_fetch import DelayedFetches
from broker.server.fetch_turns import FetchTurns
from broker.server.ownership import Ownership
from broker.server.registry import LATER, CloseConnection
from broker.server.served_logs import ServedLogs
from broker.server.topics import Topics
from broker.server.written_topics import WrittenTopics
from broker.transaction.producer_ids import ProducerIds
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.exchange import ApiKey, RequestHeader, encode_response
from pyspark_kafkalog.steps import Steps, continued

if TYPE_CHECKING:
    from broker.server.zookeeper_offsets import ZooKeeperOffsets

_OLDER_CODES = {
    (ApiKey.PRODUCE, ErrorCode.INVALID_RECORD): (3, ErrorCode.CORRUPT_MESSAGE),
    (ApiKey.PRODUCE, ErrorCode.KAFKA_STORAGE_ERROR): (4, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ApiKey.FETCH, ErrorCode.KAFKA_STORAGE_ERROR): (6, ErrorCode.NOT_LEADER_OR_FOLLOWER),
}
"""Codes that came later than the API: the first version whose clients know it, and what brokers told those
before it.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """*Thread-safe: every part is.* The broker's parts, as the handlers see them.

    ``endpoint`` tells host and port that clients are to use; it is a call because port 0 becomes a number
    only when the socket is bound. With a ZooKeeper there are ``zookeeper_offsets`` and an ``ownership``.
    """

    config: BrokerConfig
    clock: Clock
    metrics: Metrics
    logs: ServedLogs
    topics: Topics
    fetches: DelayedFetches
    turns: FetchTurns
    written_topics: WrittenTopics
    offsets: OffsetCoordinator
    producer_ids: ProducerIds
    cluster_id: str
    endpoint: Callable[[], tuple[str, int]]
    zookeeper_offsets: ZooKeeperOffsets | None = None
    ownership: Ownership | None = None


class Context:
    """*Not thread-safe: one request's.* Its surroundings, and the way back to its client."""

    __slots__ = ("header", "reply", "services", "version")

    def __init__(self, services: Services, header: RequestHeader, reply: Reply) -> None:
        self.services = services
        self.header = header
        self.reply = reply
        self.version = header.api_version
        """The version of the API that the client asked in, and is answered in."""

    def answer(self, response: Any, version: int | None = None) -> None:
        """Send the answer, in the request's version unless told. For `LATER`: from any thread.

        Raises:
            InvalidRequest: the version cannot say this; nothing was sent.
        """
        self.reply.send(self.encode(response, version))

    def encode(self, response: Any, version: int | None = None) -> Sequence[Part]:
        """The answer as parts, in the request's version unless told.

        Raises:
            InvalidRequest: the version cannot say this.
        """
        parts = encode_response(
            response,
            version=self.version if version is None else version,
            correlation_id=self.header.correlation_id,
        )
        # The protocol knows only a part's length; that a record set is bytes or a region is ours to know.
        return cast("Sequence[Part]", parts)

    def answering(self, handling: Steps[Any]) -> Steps[None]:
        """The steps of a handler, and at their end its answer, `LATER` or none, given to the client."""
        reply = self.reply
        try:
            response = yield from handling
            parts = self.encode(response) if response is not None and response is not LATER else None
        except (CloseConnection, KafkaError) as e:
            _log.info("closing the connection of %s: %s", reply.peer, e)
            reply.close()
            return
        if parts is not None:
            reply.send(parts)
        elif response is None:
            reply.no_answer()

    def go_on(self, handling: Steps[Any]) -> None:
        """Answer with what the steps of a handler come to. For `LATER`: from any thread, which takes the
        first step; the others wait for their turns.

        Raises:
            KafkaError, CloseConnection: as the first step.
        """
        try:
            wanted = next(handling)
        except StopIteration as e:
            if e.value is not LATER:
                self.answer(e.value)
        else:
            self.reply.go_on_with(self.answering(continued(wanted, handling)))

    def refused(self, error: KafkaError) -> ErrorCode:
        """The code that answers ``error`` in the request's version, counted.

        Its text goes to the log where the answer has no room.
        """
        api = ApiKey(self.header.api_key)
        self.services.metrics.request_errors(api.name, error.code.name).inc()
        _log.debug("%s of %s (%s) refused: %s", api.name, self.header.client_id, self.reply.peer, error)
        since, older = _OLDER_CODES.get((api, error.code), (0, error.code))
        return error.code if self.version >= since else older
