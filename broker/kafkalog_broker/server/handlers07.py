"""The five requests of Kafka 0.7. An exception closes the connection, the only error its clients can notice.
To 0.7 every legal name is a topic, whose partitions exist before their logs do.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from kafkalog_broker.log.append.validation import takes_long_v07
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.retention import offsets_before
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.network.reply import Part, Reply
from kafkalog_broker.security.authentication import Session
from kafkalog_broker.security.authorizer import Authorizer, denial
from kafkalog_broker.server.dispatch import Services
from kafkalog_broker.server.log_access import TimeAllowance
from kafkalog_broker.server.request_limits import COSTLY_ELEMENTS
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    MessageTooLarge,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.protocol import v07
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

_log = logging.getLogger(__name__)
_request_log = logging.getLogger("kafkalog_broker.requests")


def partition_count(services: Services, topic: str) -> int:
    """How many partitions the topic has, or would have. Raises `InvalidTopic`: the name is not legal."""
    v07.check_topic(topic)
    stored = services.topics.all().get(topic)
    return services.config.num_partitions if stored is None else len(stored.partitions)


def find_log(services: Services, topic: str, partition: int) -> Log | None:
    """The log of a partition; None as long as its topic does not exist."""
    count = partition_count(services, topic)
    if not 0 <= partition < count:
        raise UnknownTopicOrPartition(f"{topic!r} has {count} partitions; there is no number {partition}")
    if topic not in services.topics.all():
        return None
    return services.logs.log(TopicPartition(topic, partition))


_CREATION_SECONDS = 30.0
"""A producer of 0.7 cannot be told to try again, so its messages wait while others create their topic."""


def append(request: v07.ProduceRequest, services: Services, kind: v07.RequestType) -> None:
    topic, number = request.topic, request.partition
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"topic {topic!r} is internal: clients cannot write to it")
    count = partition_count(services, topic)
    if number == v07.ANY_PARTITION:
        number = random.randrange(count)
    if not 0 <= number < count:
        raise UnknownTopicOrPartition(f"{topic!r} has {count} partitions; there is no number {number}")
    if topic not in services.topics.all():
        if not services.config.auto_create_topics_enable:
            raise UnknownTopicOrPartition(f"{topic!r} does not exist; auto.create.topics.enable is false")
        services.topics.get_or_create(topic, services.logs.family.generation, _CREATION_SECONDS)
    log = services.logs.log(TopicPartition(topic, number))
    try:
        result = log.append(request.messages)
    except MessageTooLarge as e:
        services.metrics.request_errors(f"{kind.name} 0.7", e.code.name).inc()
        _log.warning("dropped %d bytes for %s: %s", len(request.messages), log.topic_partition, e)
        return
    metrics = services.metrics
    metrics.appended_messages.inc(result.record_count)
    metrics.appended_bytes.inc(result.last_offset + 1 - result.base_offset)


def multi_produce(request: v07.MultiProduceRequest, services: Services) -> None:
    """Append each part; skips one that is too large. Any other error ends the request."""
    unknown = {part.topic for part in request.produces}.difference(services.topics.all())
    if len(unknown) > COSTLY_ELEMENTS:
        raise InvalidRequest(f"MULTIPRODUCE to {len(unknown)} new topics; the limit is {COSTLY_ELEMENTS}")
    time = TimeAllowance(services.clock)
    for part in request.produces:
        time.check()
        append(part, services, v07.RequestType.MULTIPRODUCE)


LONGEST_ANSWER_BYTES = (1 << 31) - 1
"""The answer's size prefix has 31 bits."""

_ERROR_BYTES = 2


def fetch(request: v07.FetchRequest, services: Services) -> v07.FetchResponse:
    return read(request, services, LONGEST_ANSWER_BYTES - _ERROR_BYTES, v07.RequestType.FETCH)


def read(want: v07.FetchRequest, services: Services, limit: int, kind: v07.RequestType) -> v07.FetchResponse:
    try:
        log = find_log(services, want.topic, want.partition)
        if log is None:
            return v07.FetchResponse(ErrorCode.NONE)
        # 0.7.2 answers a negative size with a broken frame; we take it as 0.
        piece = log.read(want.offset, max(0, min(want.max_bytes, limit)), at_least_one=False)
    except KafkaError as e:
        code = v07.known_error(e.code)
        services.metrics.request_errors(f"{kind.name} 0.7", code.name).inc()
        _log.debug("%s refused: %s", kind.name, e)
        return v07.FetchResponse(code)
    return v07.FetchResponse(ErrorCode.NONE, piece)


_NOTHING = v07.FetchResponse(ErrorCode.NONE)
_DENIED = v07.FetchResponse(v07.known_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
_PART_HEADER_BYTES = 6


def multi_fetch(request: v07.MultiFetchRequest, services: Services) -> v07.MultiFetchResponse:
    """All parts, as far as they fit; the last ones are cut, down to nothing. With more parts than open files
    allow, reading starts at a random part, as the broker does not remember which parts were left empty.
    """
    count, most_files = len(request.fetches), services.logs.files_per_answer()
    left = LONGEST_ANSWER_BYTES - _ERROR_BYTES - _PART_HEADER_BYTES * count
    start = random.randrange(count) if count > most_files else 0
    parts = [_NOTHING] * count
    files: set[Path] = set()
    for number in chain(range(start, count), range(start)):
        has_room = len(files) < most_files
        part = read(request.fetches[number], services, left if has_room else 0, v07.RequestType.MULTIFETCH)
        if len(part.messages):
            left -= len(part.messages)
            files.add(part.messages.path)
        parts[number] = part
    return v07.MultiFetchResponse(tuple(parts))


def offsets(request: v07.OffsetsRequest, services: Services) -> v07.OffsetsResponse:
    """Offsets, largest first; a topic that does not exist yet begins and ends at 0."""
    if request.max_offsets < 0:
        raise InvalidRequest(f"OFFSETS for {request.max_offsets} offsets")
    log = find_log(services, request.topic, request.partition)
    if log is None:
        named = request.timestamp in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP)
        return v07.OffsetsResponse(ErrorCode.NONE, (0,)[: request.max_offsets] if named else ())
    found = offsets_before(
        log.facts(), log.readable_end, services.clock.time_ms(), request.timestamp, request.max_offsets
    )
    return v07.OffsetsResponse(ErrorCode.NONE, found)


def takes_long(request: Any, services: Services) -> bool:
    """Whether a worker is to handle the request: it creates topics, or has many or compressed messages."""
    if isinstance(request, v07.ProduceRequest):
        return request.topic not in services.topics.all() or takes_long_v07(request.messages)
    if isinstance(request, v07.MultiProduceRequest):
        return len(request.produces) > _FEW_PARTS or any(
            takes_long(part, services) for part in request.produces
        )
    return False


_FEW_PARTS = 16

Handler07 = Callable[[Any, Services], v07.Response | None]

HANDLERS: Mapping[type, tuple[v07.RequestType, Handler07]] = MappingProxyType(
    {
        v07.ProduceRequest: (v07.RequestType.PRODUCE, partial(append, kind=v07.RequestType.PRODUCE)),
        v07.FetchRequest: (v07.RequestType.FETCH, fetch),
        v07.MultiFetchRequest: (v07.RequestType.MULTIFETCH, multi_fetch),
        v07.MultiProduceRequest: (v07.RequestType.MULTIPRODUCE, multi_produce),
        v07.OffsetsRequest: (v07.RequestType.OFFSETS, offsets),
    }
)


def _guarded(
    handler: Handler07, request: Any, services: Services, authorizer: Authorizer, session: Session
) -> v07.Response | None:
    """A denied read gets 0.7's code for unknown errors; a denied write closes the connection."""
    if isinstance(request, v07.ProduceRequest | v07.MultiProduceRequest):
        parts = request.produces if isinstance(request, v07.MultiProduceRequest) else (request,)
        known = services.topics.all()
        for topic in dict.fromkeys(part.topic for part in parts):
            v07.check_topic(topic)
            name = "MultiProduce" if request is not parts[0] else "Produce"
            allows = partial(authorizer.allows, session, request=name)
            if not allows(Operation.WRITE, ResourceType.TOPIC, topic):
                raise denial(ResourceType.TOPIC)
            if topic in known or allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
                continue
            if not allows(Operation.CREATE, ResourceType.TOPIC, topic):
                raise denial(ResourceType.TOPIC)
        return handler(request, services)
    if isinstance(request, v07.MultiFetchRequest):
        topics = dict.fromkeys(part.topic for part in request.fetches)
        readable = {
            topic
            for topic in topics
            if authorizer.allows(session, Operation.READ, ResourceType.TOPIC, topic, "MultiFetch")
        }
        asked = tuple(part for part in request.fetches if part.topic in readable)
        found = iter(multi_fetch(v07.MultiFetchRequest(asked), services).responses)
        return v07.MultiFetchResponse(
            tuple(next(found) if part.topic in readable else _DENIED for part in request.fetches)
        )
    if isinstance(request, v07.FetchRequest):
        if not authorizer.allows(session, Operation.READ, ResourceType.TOPIC, request.topic, "Fetch"):
            return _DENIED
    elif not authorizer.allows(session, Operation.DESCRIBE, ResourceType.TOPIC, request.topic, "Offsets"):
        return v07.OffsetsResponse(_DENIED.error_code)
    return handler(request, services)


class Dispatcher07:
    """*Thread-safe.* A request that cannot be decoded, or fails without an answer, closes its connection."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._served = {
            kind: (handler, services.metrics.requests(f"{number.name} 0.7"))
            for kind, (number, handler) in HANDLERS.items()
        }

    def __call__(self, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        try:
            request = v07.decode_request(frame)
            handler, count = self._served[type(request)]
            count.inc()
            if _request_log.isEnabledFor(logging.DEBUG):
                _request_log.debug("%s %s 0.7: %d bytes", reply.peer, _name_of(frame), len(frame))
            authorizer = self._services.authorizer
            if authorizer is None:
                handle = partial(handler, request, self._services)
            else:
                handle = partial(_guarded, handler, request, self._services, authorizer, reply.session)
            if takes_long(request, self._services):
                reply.work_on(partial(self._work, handle, _name_of(frame), reply))
                return None
            response = handle()
        except KafkaError as e:
            self._refused(_name_of(frame), e, reply)
            return None
        if response is None:
            reply.no_answer()
            return None
        return _encoded(response)

    def _work(self, handle: Callable[[], v07.Response | None], name: str, reply: Reply) -> None:
        try:
            response = handle()
        except KafkaError as e:
            self._refused(name, e, reply)
            return
        if response is None:
            reply.no_answer()
        else:
            reply.send(_encoded(response))

    def _refused(self, name: str, error: KafkaError, reply: Reply) -> None:
        self._services.metrics.request_errors(name, error.code.name).inc()
        _log.info("closing the connection of %s: %s", reply.peer, error)
        reply.close()


def _encoded(response: v07.Response) -> Sequence[Part]:
    return cast("Sequence[Part]", v07.encode_response(response))


def _name_of(frame: bytearray) -> str:
    try:
        return f"{v07.RequestType(int.from_bytes(frame[:2], 'big')).name} 0.7"
    except ValueError:
        return "unknown 0.7"
