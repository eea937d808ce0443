"""Calls to the other brokers of the cluster; the only place where a broker is a client."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.client.connection import Connection, Ticket
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Poller, Transport
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig, KafkaError
from pyspark_kafkalog.types import TopicPartition

Answered = Callable[[Any, "KafkaError | None"], None]
"""Called once, in the peer's thread, with the response, or with None and the error."""

_LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SHARED = (
    "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.key", "ssl.keystore.certificate.chain",
    "ssl.key.password", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.certificates",
    "ssl.endpoint.identification.algorithm", "ssl.protocol", "ssl.enabled.protocols", "ssl.cipher.suites",
)  # fmt: skip
"""Properties that a listener and its clients have in common."""

_SETUP_MS = 5_000
_STOP_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_SILENCE_SECONDS = 60
"""A connection ends after so long without a sign from the other machine. A machine that slept for longer
reads what it was sent when it resumes, before it registers in ZooKeeper again and is called again.
"""

_log = logging.getLogger(__name__)


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, tuple[int, ...]]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for each in partitions:
        topics[each.topic].append(each.partition)
    return [(topic, tuple(numbers)) for topic, numbers in topics.items()]


class _Call(msgspec.Struct, frozen=True):
    request: Any
    version: int
    answered: Answered
    deadline: Deadline | None


def peer_config(config: BrokerConfig) -> ClientConfig:
    """Client configuration for other brokers. Raises `InvalidConfig`: no listener, or no usable login."""
    listener = config.inter_broker_listener
    if listener is None:
        raise InvalidConfig(f"listeners={config.listeners}: none for other brokers")
    protocol = config.protocols[listener.name]
    own = config.listener_properties.of(listener.name).as_properties()
    wanted: dict[str, object] = {
        "bootstrap.servers": f"{listener.name.lower()}:1",  # not used: addresses come from ZooKeeper
        "client.id": f"broker-{config.node_id}",
        "security.protocol": protocol,
        "socket.connection.setup.timeout.ms": _SETUP_MS,
    }
    if protocol.endswith("SSL"):
        wanted |= {name: own[name] for name in _SHARED if name in own}
    if protocol.startswith("SASL"):
        enabled = config.listener_properties.of(listener.name).sasl_enabled_mechanisms
        only = enabled[0] if len(enabled) == 1 else None
        mechanism = config.sasl_mechanism_inter_broker_protocol or only
        if mechanism not in _LOGINS:
            raise InvalidConfig(
                f"sasl.mechanism.inter.broker.protocol={mechanism}: brokers log in at each other with one of "
                f"{', '.join(_LOGINS)}"
            )
        jaas = config.listener_properties.of(listener.name, mechanism).sasl_jaas_config
        if jaas is None or "username" not in jaas:
            prefix = f"listener.name.{listener.name.lower()}.{mechanism.lower()}"
            raise InvalidConfig(f"{prefix}.sasl.jaas.config has no username and password for other brokers")
        wanted |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    return parse(ClientConfig, wanted, source="inter.broker.listener.name")


class Peers:
    """*Thread-safe: ``_lock`` guards the table.* Each broker has a thread, so that none delays another."""

    def __init__(
        self, config: ClientConfig | None, address_of: Callable[[int], tuple[str, int] | None], clock: Clock
    ) -> None:
        """``config`` is from `peer_config`, None to call nobody; ``address_of`` returns None if away."""
        self._config = config
        self._address_of = address_of
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}
        self._closed = False

    def ask(
        self, broker: int, request: Any, version: int, answered: Answered, seconds: float | None = None
    ) -> None:
        """Send a request; ``answered`` gets its outcome. Without ``seconds`` it waits as long as the
        connection lasts, as a stopped broker answers after it resumes and must not be asked twice.
        """
        with self._lock:
            peer = self._peers.get(broker)
            if peer is None and not self._closed and self._config is not None:
                peer = self._peers[broker] = _Peer(broker, self._config, self._address_of, self._clock)
        if peer is None:
            answered(None, ConnectionLost("this broker calls no others: it stops, or has no login for them"))
            return
        deadline = None if seconds is None else Deadline.after(seconds, self._clock)
        peer.ask(_Call(request, version, answered, deadline))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            peers = list(self._peers.values())
        for peer in peers:
            peer.stop()


@dataclass(eq=False)
class _Peer:
    """*Thread-safe: other threads only call `ask` and `stop`.* Pipelined: ``_asked`` wait for responses."""

    broker: int
    config: ClientConfig
    address_of: Callable[[int], tuple[str, int] | None]
    clock: Clock

    def __post_init__(self) -> None:
        self._calls: deque[_Call] = deque()
        self._asked: dict[Ticket, _Call] = {}
        self._connection: Connection | None = None
        self._watched: Transport | None = None
        self._poller = Poller()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"peer-{self.broker}", daemon=True)
        self._thread.start()

    def ask(self, call: _Call) -> None:
        self._calls.append(call)
        self._poller.wake()

    def stop(self) -> None:
        self._stopping = True
        self._poller.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping:
            self._poller.wait(_LOOK_SECONDS if self._asked else None)
            try:
                self._check_address()
                self._exchange()
            except KafkaError as e:
                self._lost(e)
            except Exception as e:
                _log.exception("broker %d could not be called", self.broker)
                self._lost(ConnectionLost(f"broker {self.broker} could not be called: {e}"))
            self._expire()
        self._lost(ConnectionLost("this broker stops"))
        self._poller.close()

    def _exchange(self) -> None:
        connection = self._connection
        if connection is None:
            if not self._calls:
                return
            connection = self._connection = self._connected()
        while self._calls and not self._stopping:
            call = self._calls[0]
            ticket = connection.send_now(call.request, version=call.version)
            self._asked[ticket] = self._calls.popleft()
        for ticket, answer in connection.receive_now():
            answered = self._asked.pop(ticket, None)
            if answered is not None:
                self._give(answered, answer, None)
        connection.flush_now()
        if self._watched is not connection.transport:
            self._forget()
            self._watched = connection.transport
        self._poller.watch(connection.transport, self, writing=connection.unsent)

    def _connected(self) -> Connection:
        address = self.address_of(self.broker)
        if address is None:
            raise ConnectionLost(f"broker {self.broker} is away")
        connection = Connection(*address, self.config, clock=self.clock)
        connection.transport.end_if_silent(_SILENCE_SECONDS)
        return connection

    def _check_address(self) -> None:
        """A broker at another address is another process: the old one will not answer."""
        if self._connection is not None:
            asked, address = (self._connection.host, self._connection.port), self.address_of(self.broker)
            if address not in (asked, None):
                raise ConnectionLost(f"broker {self.broker} is at another address now")

    def _lost(self, error: KafkaError) -> None:
        self._forget()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        calls = [*self._asked.values(), *self._calls]
        self._asked.clear()
        self._calls.clear()
        for call in calls:
            self._give(call, None, error)

    def _forget(self) -> None:
        if self._watched is not None:
            self._poller.forget(self._watched)
            self._watched = None

    def _expire(self) -> None:
        late = [
            ticket
            for ticket, call in self._asked.items()
            if call.deadline is not None and call.deadline.passed
        ]
        for ticket in late:
            call = self._asked.pop(ticket)
            if self._connection is not None:
                self._connection.drop(ticket)
            self._give(call, None, ConnectionLost(f"broker {self.broker} does not answer"))

    def _give(self, call: _Call, answer: Any, error: KafkaError | None) -> None:
        try:
            call.answered(answer, error)
        except Exception:
            _log.exception("an answer of broker %d could not be used", self.broker)
