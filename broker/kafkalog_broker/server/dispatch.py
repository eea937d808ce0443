"""From a request's bytes to its handler and back: the dispatcher that the socket server calls, the handlers'
`Context`, and the registry of handlers with their versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from kafkalog_broker.cluster.ownership import Ownership
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.groups.group_coordinator import GroupCoordinator
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.network.reply import Part, Reply
from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.security.authentication import Principal, Session
from kafkalog_broker.security.authorizer import Authorizer, denial
from kafkalog_broker.security.file_stores import CredentialStore
from kafkalog_broker.server.broker_settings import BrokerSettings
from kafkalog_broker.server.delayed_fetch import DelayedFetches, FetchTurns
from kafkalog_broker.server.fetch_sessions import FetchSessions
from kafkalog_broker.server.log_access import LogAccess
from kafkalog_broker.server.metadata_cache import MetadataCache
from kafkalog_broker.server.request_limits import FEW_BYTES, NARROW_BYTES, BeyondLimit, check_width, excess
from kafkalog_broker.server.topics import Topics
from kafkalog_broker.transactions.producer_ids import ProducerIds
from kafkalog_broker.transactions.transaction_coordinator import TransactionCoordinator
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, KafkaError, UnsupportedVersion
from pyspark_kafkalog.protocol.exchange import (
    ApiKey,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
)
from pyspark_kafkalog.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kafkalog_broker.groups.offset_migration import OffsetMigration
    from kafkalog_broker.server.registration import ZooKeeperOffsets

_OLDER_CODES = {
    (ApiKey.PRODUCE, ErrorCode.INVALID_RECORD): (3, ErrorCode.CORRUPT_MESSAGE),
    (ApiKey.PRODUCE, ErrorCode.KAFKA_STORAGE_ERROR): (4, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ApiKey.FETCH, ErrorCode.KAFKA_STORAGE_ERROR): (6, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.PRODUCER_FENCED): (4, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.PRODUCER_FENCED): (2, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.PRODUCER_FENCED): (2, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED): (2, ErrorCode.INVALID_PRODUCER_EPOCH),
}
"""Codes younger than their API: the first version that knows the code, and the code for older versions."""

_log = logging.getLogger(__name__)


class Services(msgspec.Struct, frozen=True):
    """*Thread-safe: every part is.* ``endpoint`` is a call because port 0 is resolved late. ``config`` is
    that of the start, ``settings`` the current one. The last three are set only with ZooKeeper.
    """

    config: BrokerConfig
    settings: BrokerSettings
    clock: Clock
    metrics: Metrics
    logs: LogAccess
    topics: Topics
    fetches: DelayedFetches
    turns: FetchTurns
    fetch_sessions: FetchSessions
    metadata_cache: MetadataCache
    groups: GroupCoordinator
    producer_ids: ProducerIds
    transactions: TransactionCoordinator
    transaction_work: Scheduler
    offset_migration: OffsetMigration | None
    cluster_id: str
    endpoint: Callable[[], tuple[str, int]]
    credentials: CredentialStore
    authorizer: Authorizer | None = None
    zookeeper_offsets: ZooKeeperOffsets | None = None
    ownership: Ownership | None = None


class Context:
    """*Not thread-safe: one request's.* Its header, the broker's services, and its reply."""

    __slots__ = ("_denied", "header", "refusal", "reply", "services", "takes_long", "version")

    def __init__(self, services: Services, header: RequestHeader, reply: Reply) -> None:
        self.services = services
        self.header = header
        self.reply = reply
        self._denied: set[tuple[Operation, ResourceType, str]] | None = None
        self.version = header.api_version
        self.takes_long = False
        """Whether a worker handles the request."""
        self.refusal: KafkaError | None = None
        """Set if the request is beyond a limit: whatever it asks for is denied with this."""

    @property
    def session(self) -> Session:
        """The client's principal, address and listener; one object for a connection's life."""
        session: Session = self.reply.session
        return session

    @property
    def client_host(self) -> str:
        """As Kafka writes it: ``/127.0.0.1``."""
        return "/" + self.session.host

    @property
    def principal(self) -> Principal:
        return self.session.principal

    def check_size(self) -> None:
        """Raises the ``refusal``; for handlers that demand nothing."""
        if self.refusal is not None:
            raise self.refusal

    def demand(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raises a `KafkaError` with the denial's code if the client may not do this, and logs it once.
        Raises the ``refusal``.
        """
        self.check_size()
        authorizer = self.services.authorizer
        if authorizer is None:
            return
        wanted = operation, resource_type, name
        logged = self._denied is not None and wanted in self._denied
        if authorizer.allows(self.session, *wanted, self.header.api_key, audited=not logged):
            return
        if self._denied is None:
            self._denied = set()
        self._denied.add(wanted)
        raise denial(resource_type)

    def denied(self, operation: Operation, resource_type: ResourceType, name: str) -> KafkaError | None:
        """As `demand`, with the error returned."""
        try:
            self.demand(operation, resource_type, name)
        except KafkaError as e:
            return e
        return None

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do this; does not log a denial. False with a ``refusal``."""
        if self.refusal is not None:
            return False
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.allows(
            self.session, operation, resource_type, name, self.header.api_key, audited=False
        )

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.allows_any(self.session, operation, resource_type)

    def operations(self, known: int, resource_type: ResourceType, name: str) -> int:
        authorizer = self.services.authorizer
        return (
            known if authorizer is None else authorizer.operations(self.session, known, resource_type, name)
        )

    def answer(self, response: Any, version: int | None = None) -> None:
        self.reply.send(self.encode(response, version))

    def encode(self, response: Any, version: int | None = None) -> Sequence[Part]:
        """The response as parts, by default in the request's version. Raises `InvalidRequest`."""
        version = self.version if version is None else version
        parts = encode_response(response, version=version, correlation_id=self.header.correlation_id)
        # The protocol package knows only a part's length, not whether it is bytes or a region of a file.
        return cast("Sequence[Part]", parts)

    def finish(self, handle: Callable[[], Any]) -> None:
        if self.reply.closed:
            return
        try:
            response = handle()
            if response is None:
                self.reply.no_answer()
            elif response is not LATER:
                self.answer(response)
        except (CloseConnection, KafkaError) as e:
            _log.info("closing the connection of %s: %s", self.reply.peer, e)
            self.reply.close()
        except Exception:
            _log.exception("request of %s (%s)", self.header.client_id, self.reply.peer)
            self.reply.close()

    def later(self, handle: Callable[[], Any]) -> Callable[[], None]:
        return partial(self.finish, handle)

    def finish_in_worker(self, handle: Callable[[], Any]) -> None:
        """`finish` in a worker's thread, because ``handle`` takes long. May be called in any thread."""
        self.reply.work_on(partial(self.finish, handle))

    def refused(self, error: KafkaError) -> ErrorCode:
        """The code for ``error`` in the request's version; counts the error and logs its text."""
        api = ApiKey(self.header.api_key)
        self.services.metrics.request_errors(api.name, error.code.name).inc()
        _log.debug("%s of %s (%s) refused: %s", api.name, self.header.client_id, self.reply.peer, error)
        since, older = _OLDER_CODES.get((api, error.code), (0, error.code))
        return error.code if self.version >= since else older


class CloseConnection(Exception):
    """Raised by a handler when only closing the connection can tell the client about the error."""


LATER = object()
"""Returned by a handler that answers through its `Context` itself, now or from another thread."""

Handler = Callable[[Any, "Context"], Any]
"""``(request, context) -> response``, or None for no answer, or `LATER`; may raise `CloseConnection`."""

LongRule = Callable[[Any, "Context"], bool]
"""``(request, context)``: whether to handle it in a worker, so that other clients do not wait. Cheap."""

MANY = 200
"""A request with more elements takes some ms, and goes to a worker."""


def always(_request: Any, _ctx: Context) -> bool:
    """For requests that write to the disk, ask ZooKeeper, or have an unbounded answer."""
    return True


ShortCut = Callable[[bytearray, int, "Context"], "Sequence[Part] | None"]
"""``(frame, position of the body, context) -> answer``, or None to call the handler."""

Need = tuple[Operation, ResourceType]

_H = TypeVar("_H", bound=Callable[..., Any])


class Registration(msgspec.Struct, frozen=True):
    """One API that this broker serves; versions are inclusive. ``needs`` are the operations for which the
    handler asks its `Context`. A ``short_cut`` sees the request before it is decoded. ``unknown_version``
    gives the answer, in version 0, to an unserved version; without it such a request closes its connection.
    """

    key: ApiKey
    versions: tuple[int, int]
    handler: Handler
    needs: tuple[Need, ...]
    takes_long: LongRule | None = None
    short_cut: ShortCut | None = None
    unknown_version: Callable[[], Any] | None = None


_registrations: dict[ApiKey, Registration] = {}

REGISTRY: Mapping[ApiKey, Registration] = MappingProxyType(_registrations)
"""Filled when `kafkalog_broker.server.handlers` is imported; read-only after that."""


def handles(
    key: ApiKey,
    versions: tuple[int, int],
    *needs: Need,
    takes_long: LongRule | None = None,
    short_cut: ShortCut | None = None,
    unknown_version: Callable[[], Any] | None = None,
) -> Callable[[_H], _H]:
    """Register the decorated function as the only handler of ``key``."""

    def register(handler: _H) -> _H:
        if key in _registrations:
            raise ValueError(f"{key.name} has a handler already")
        _registrations[key] = Registration(
            key, versions, handler, needs, takes_long, short_cut, unknown_version
        )
        return handler

    return register


_request_log = logging.getLogger("kafkalog_broker.requests")


class Dispatcher:
    """*Thread-safe: it has no state of its own.* Closes the connection of a request it cannot decode."""

    def __init__(self, services: Services) -> None:
        self._services = services
        # By plain number, with the counter: every request passes here.
        self._served = {
            int(key): (entry, services.metrics.requests(key.name)) for key, entry in REGISTRY.items()
        }

    def __call__(self, frame: bytearray, reply: Reply) -> Sequence[Part] | None:
        """Handle one request in a processor thread. None: the answer, if any, goes through ``reply``."""
        try:
            header, pos = decode_header(frame)
            return self._handle(header, frame, pos, reply)
        except (CloseConnection, KafkaError) as e:
            level = logging.WARNING if isinstance(e, BeyondLimit) else logging.INFO
            _log.log(level, "closing the connection of %s: %s", reply.peer, e)
            reply.close()
            return None

    def _handle(
        self, header: RequestHeader, frame: bytearray, pos: int, reply: Reply
    ) -> Sequence[Part] | None:
        try:
            entry, count = self._served[header.api_key]
        except KeyError:
            raise UnsupportedVersion(f"api key {header.api_key} is not served") from None
        count.inc()
        if _request_log.isEnabledFor(logging.DEBUG):
            _request_log.debug(
                "%s %s v%d id %d client %s: %d bytes",
                reply.peer, entry.key.name, header.api_version, header.correlation_id, header.client_id,
                len(frame),
            )  # fmt: skip
        if len(frame) > NARROW_BYTES:
            check_width(entry.key, header, frame, pos)
        context = Context(self._services, header, reply)
        low, high = entry.versions
        if not low <= header.api_version <= high:
            if entry.unknown_version is None:
                raise UnsupportedVersion(
                    f"{entry.key.name} version {context.version}; served are {low} to {high}"
                )
            return context.encode(entry.unknown_version(), version=0)
        if entry.short_cut is not None:
            parts = entry.short_cut(frame, pos, context)
            if parts is not None:
                return parts
        request = decode_request(header, frame, pos)
        if len(frame) > FEW_BYTES:
            context.refusal = excess(entry.key, len(frame), request)
        if context.refusal is not None:
            _log.warning("refused to %s (%s): %s", header.client_id, reply.peer, context.refusal)
        if context.refusal or (entry.takes_long is not None and entry.takes_long(request, context)):
            context.takes_long = True
            context.finish_in_worker(partial(entry.handler, request, context))
            return None
        response = entry.handler(request, context)
        if response is LATER:
            return None
        if response is None:
            reply.no_answer()
            return None
        return context.encode(response)
