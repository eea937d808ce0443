"""One connection of 0.7's wire: nothing but the order of answers says what belongs to what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.client.connection07 import Connection07
from pyspark_kafkalog.config.classic_config import Client07Config
from pyspark_kafkalog.errors import ConnectionLost, ErrorCode, FrameTooLarge, InvalidRequest, MessageTooLarge
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.protocol.v07 import (
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    OffsetsRequest,
    ProduceRequest,
)
from tests.support.client.broker07 import Broker07
from tests.support.client.scripted_server import Raw
from tests.support.until import until

THREE = encode_set([b"a", b"b", b"c"])


@pytest.fixture
def broker() -> Iterator[Broker07]:
    with Broker07() as broker:
        broker.append("t", 0, THREE)
        yield broker


@pytest.fixture
def connection(broker: Broker07) -> Iterator[Connection07]:
    connection = connect(broker)
    yield connection
    connection.close()


def connect(broker: Broker07, **changes: Any) -> Connection07:
    return Connection07("127.0.0.1", broker.port, Client07Config(**changes))


def keep_looking(connection: Connection07) -> None:
    """Look until it fails."""
    until(connection.look)


def test_each_question_gets_its_answer(connection: Connection07) -> None:
    assert bytes(connection.request(FetchRequest("t", 0, 11, 100)).messages) == THREE[11:]
    assert connection.request(OffsetsRequest("t", 0, -1, 1)).offsets == (33,)
    answer = connection.request(MultiFetchRequest((FetchRequest("t", 0, 0, 11), FetchRequest("t", 9, 0, 11))))
    assert [(part.error_code, bytes(part.messages)) for part in answer.responses] == [
        (ErrorCode.NONE, THREE[:11]),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b""),
    ]


def test_answers_may_be_asked_for_in_any_order(connection: Connection07) -> None:
    tickets = [connection.send(FetchRequest("t", 0, offset, 11)) for offset in (0, 11, 22)]
    assert connection.in_flight == 3
    found: dict[int, bytes] = {}
    for place in (2, 0, 1):
        answer = connection.receive(tickets[place])
        assert isinstance(answer, FetchResponse)
        found[place] = bytes(answer.messages)
    assert found == {0: THREE[:11], 1: THREE[11:22], 2: THREE[22:]}
    assert connection.in_flight == 0


def test_an_answer_can_be_taken_once(connection: Connection07) -> None:
    ticket = connection.send(FetchRequest("t", 0, 0, 11))
    connection.receive(ticket)
    with pytest.raises(InvalidRequest, match="response to FETCH was already received"):
        connection.receive(ticket)


def test_a_produce_is_unconfirmed_until_an_answer_to_something_later(connection: Connection07) -> None:
    early = connection.send(FetchRequest("t", 0, 0, 11))
    connection.produce(ProduceRequest("t", 1, THREE))
    connection.receive(early)
    assert connection.unconfirmed == 1
    connection.confirm()
    assert connection.unconfirmed == 0


def test_a_refused_produce_is_found_out_by_confirm(broker: Broker07, connection: Connection07) -> None:
    connection.produce(ProduceRequest("t", 9, THREE))
    with pytest.raises(ConnectionLost, match=broker.address):
        connection.confirm()
    assert connection.broken
    assert connection.unconfirmed == 1
    with pytest.raises(ConnectionLost, match="is closed"):
        connection.produce(ProduceRequest("t", 0, THREE))


def test_looking_shows_that_the_broker_has_gone(broker: Broker07, connection: Connection07) -> None:
    connection.confirm()
    connection.look()
    broker.cut_connections()
    with pytest.raises(ConnectionLost, match=broker.address):
        keep_looking(connection)
    assert connection.broken


def test_looking_keeps_the_answers_it_meets(connection: Connection07) -> None:
    ticket = connection.send(FetchRequest("t", 0, 0, 11))
    while connection.in_flight:
        connection.look()
    answer = connection.receive(ticket)
    assert isinstance(answer, FetchResponse)
    assert bytes(answer.messages) == THREE[:11]


def test_an_answer_that_nobody_asked_for_ends_the_connection(
    broker: Broker07, connection: Connection07
) -> None:
    broker.script(FetchRequest, Raw(2 * bytes.fromhex("00000002 0000")))
    connection.request(FetchRequest("t", 0, 0, 11))
    with pytest.raises(InvalidRequest, match=rf"{broker.address}.*without a request"):
        keep_looking(connection)
    assert connection.broken


def test_the_size_that_a_real_broker_sends_for_a_negative_fetch_is_refused(
    broker: Broker07, connection: Connection07
) -> None:
    broker.script(FetchRequest, Raw(bytes.fromhex("fffffffd")))
    with pytest.raises(FrameTooLarge, match="not a response of a Kafka broker: frame of -3 bytes"):
        connection.request(FetchRequest("t", 0, 0, -5))
    assert connection.broken


def test_a_request_that_brokers_would_refuse_for_its_size_is_not_sent(broker: Broker07) -> None:
    connection = connect(broker, max_request_bytes=60)
    with pytest.raises(MessageTooLarge, match=r"of 6\d bytes is above max.socket.request.bytes=60"):
        connection.produce(ProduceRequest("t", 0, encode_set([b"x" * 40])))
    assert not connection.broken
    connection.produce(ProduceRequest("t", 0, THREE))
    connection.confirm()
    assert len(broker.received(ProduceRequest)) == 1
    connection.close()
