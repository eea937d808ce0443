"""Clients of Kafka 0.7's time at our listener of 0.7: what one of them writes, the others read, and so do we.

Where a client has an error of its own, the test says what it makes of good bytes, to the byte, and why.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import encode_set
from tests.support.foreign.clients07 import Client07, ClientError, Driver
from tests.support.protocol.wire07 import EARLIEST, LATEST, Wire07, entry, fetch, offsets, offsets_in, produce
from tests.support.until import until

SEGMENT_BYTES = 2000
MESSAGES = [b"hello", b"w", b"", b"between\r\n", b"x" * 700, b'{"last": true}']
"""In ASCII, which is all that kafka of npm can write; not ending in an empty one, which it cannot read."""

READERS = ("prozess", "kafka", "brod 0.3.2", "brod 0.4.3", "pykafka", "samsa")
MAGIC_0_ONLY = ("kafka", "brod 0.3.2", "brod 0.4.3", "pykafka")


class Writer(NamedTuple):
    """One who produces, the magic it writes, and what else it is told."""

    client: str
    magic: int
    more: dict[str, int]


WRITERS = {
    "prozess": Writer("prozess", 1, {}),
    "kafka": Writer("kafka", 0, {}),
    "brod 0.3.2": Writer("brod 0.3.2", 0, {}),
    "brod 0.4.3": Writer("brod 0.4.3", 0, {}),
    "pykafka": Writer("pykafka", 0, {}),
    "samsa": Writer("samsa", 0, {"magic": 0}),
    "samsa, magic 1": Writer("samsa", 1, {"magic": 1}),
    "ours": Writer("ours", 1, {}),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    properties = {
        "listeners": "KAFKA07://127.0.0.1:0", "num.partitions": 2, "log.flush.interval": 1,
        "log.file.size": SEGMENT_BYTES,
    }  # fmt: skip
    with start_broker(properties) as broker:
        yield broker


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire07]:
    with Wire07(broker.port) as wire:
        yield wire


Clients = Callable[[str], Client07]


@pytest.fixture(scope="module")
def clients(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Clients:
    """A client by its name; skips the test where it cannot be had, and says why."""

    def client(name: str) -> Client07:
        fixture = "node_clients" if name in ("prozess", "kafka") else "python2_clients"
        driver: Driver = request.getfixturevalue(fixture)
        return Client07(driver, name, broker.port)

    return client


def log_end(wire: Wire07, topic: str, partition: int = 0) -> int:
    return offsets_in(wire.ask(offsets(topic, partition, LATEST, 1)))[0]


def stored(wire: Wire07, topic: str, size: int = 1 << 20) -> bytes:
    answer = wire.ask(fetch(topic, 0, 0, size))
    assert answer is not None
    return answer[2:]


@pytest.fixture(scope="module")
def written(broker: EmbeddedBroker, clients: Clients) -> Callable[[str], str]:
    """The topic that holds `MESSAGES` as a writer sent them; each writes its own once."""
    topics: dict[str, str] = {}

    def topic(name: str) -> str:
        if name not in topics:
            writer, topic = WRITERS[name], f"written-{len(topics)}"
            if writer.client == "ours":
                with SyncProducer("127.0.0.1", broker.port) as producer:
                    producer.send(topic, MESSAGES, 0)
            else:
                clients(writer.client).produce(topic, MESSAGES, **writer.more)
            with Wire07(broker.port) as wire:
                until(lambda: log_end(wire, topic))
            topics[name] = topic
        return topics[name]

    return topic


def in_text(payload: bytes) -> bytes:
    """What kafka of npm gives out, which takes each payload for UTF-8."""
    return payload.decode(errors="replace").encode()


def understood(reader: str, magic: int) -> list[bytes]:
    """What a client makes of `MESSAGES`, given its errors."""
    if reader == "prozess" and magic == 0:
        # It counts an attributes byte that magic 0 does not have, and takes what follows for a cut message.
        return MESSAGES[:1]
    if reader.startswith("brod") and magic == 1:
        # It leaves the attributes byte out of its count: the payload gets a byte more, and the rest is lost.
        return [MESSAGES[0] + b"\0"]
    if reader in ("pykafka", "kafka") and magic == 1:
        # They know no attributes: what they take for the checksum ends a byte early.
        found = [bytes([zlib.crc32(payload) & 0xFF]) + payload for payload in MESSAGES]
        return found if reader == "pykafka" else [in_text(payload) for payload in found]
    return MESSAGES


@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_client_writes_is_stored_as_0_7_has_it(
    written: Callable[[str], str], wire: Wire07, writer: str
) -> None:
    magic = WRITERS[writer].magic
    topic = written(writer)
    assert stored(wire, topic) == b"".join(entry(payload, magic=magic) for payload in MESSAGES)
    assert log_end(wire, topic) == sum(map(len, MESSAGES)) + len(MESSAGES) * (9 + magic)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_clients_read_each_other(
    written: Callable[[str], str], clients: Clients, wire: Wire07, writer: str, reader: str
) -> None:
    magic, topic = WRITERS[writer].magic, written(writer)
    found = clients(reader).fetch(topic, 0)
    assert found.payloads == understood(reader, magic)
    if found.payloads == MESSAGES:
        assert found.next_offset == log_end(wire, topic)
        assert clients(reader).fetch(topic, found.next_offset) == ([], found.next_offset)


@pytest.mark.parametrize("writer", WRITERS)
def test_we_read_them(written: Callable[[str], str], broker: EmbeddedBroker, writer: str) -> None:
    with SimpleConsumer("127.0.0.1", broker.port) as consumer:
        found = consumer.fetch(written(writer), 0, 0)
    assert [bytes(payload) for payload, _ in found] == MESSAGES
    assert {record.value for record in found.records()} == set(MESSAGES)


@pytest.mark.parametrize("reader", ["prozess", "samsa"])
def test_a_gzip_set_of_ours_comes_as_it_was_sent(
    broker: EmbeddedBroker, clients: Clients, topic_name: str, reader: str
) -> None:
    """The two that read magic 1 decompress nothing: they give out what the entry holds."""
    with SyncProducer("127.0.0.1", broker.port) as producer:
        producer.send(topic_name, MESSAGES, 0, Codec.GZIP)
        producer.send(topic_name, [b"after"], 0)
    found = clients(reader).fetch(topic_name, 0)
    assert gzip.decompress(found.payloads[0]) == encode_set(MESSAGES)
    assert found.payloads[1:] == [b"after"]


BINARY = [bytes(range(256)), b"\xff\xfe", b"\0" * 9, "naïve €".encode()]


@pytest.mark.parametrize("client", ["prozess", "brod 0.3.2", "brod 0.4.3", "pykafka", "samsa"])
def test_bytes_that_are_not_text_survive_the_round_trip(
    clients: Clients, wire: Wire07, topic_name: str, client: str
) -> None:
    clients(client).produce(topic_name, BINARY, partition=1)
    end = until(lambda: log_end(wire, topic_name, 1))
    assert clients(client).fetch(topic_name, 0, partition=1) == (BINARY, end)


def test_a_checksum_that_a_client_gets_wrong_is_refused(
    clients: Clients, wire: Wire07, topic_name: str
) -> None:
    """kafka of npm sums the UTF-8 of a text whose characters it sends as single bytes."""
    clients("kafka").produce(topic_name, ["caf\xe9".encode("latin-1")])
    clients("kafka").produce(topic_name, [b"good"])
    until(lambda: log_end(wire, topic_name))
    assert stored(wire, topic_name) == entry(b"good", magic=0)


@pytest.mark.parametrize("client", [name for name in READERS if name != "pykafka"])
def test_clients_learn_where_a_log_ends(
    written: Callable[[str], str], clients: Clients, wire: Wire07, client: str
) -> None:
    topic = written("ours")
    end = log_end(wire, topic)
    assert clients(client).offsets(topic, LATEST) == [end]
    # kafka of npm asks for a time thousands of years from now, whatever it is told.
    assert clients(client).offsets(topic, EARLIEST) == ([end] if client == "kafka" else [0])


@pytest.mark.parametrize("client", ["brod 0.3.2", "brod 0.4.3", "samsa"])
def test_clients_learn_where_segments_begin(
    clients: Clients, wire: Wire07, topic_name: str, client: str
) -> None:
    for _ in range(5):
        wire.send(produce(topic_name, 0, entry(b"s" * 1491, magic=0)))
    until(lambda: log_end(wire, topic_name) == 7500)
    assert clients(client).offsets(topic_name, LATEST, 9) == [7500, 6000, 3000, 0]
    assert clients(client).offsets(topic_name, LATEST, 2) == [7500, 6000]
    assert clients(client).offsets(topic_name, 0, 9) == []


@pytest.mark.parametrize(
    ("client", "beyond", "wrong"),
    [
        ("prozess", "OffsetOutOfRange", "WrongPartition"),
        ("kafka", "OffsetOutOfRange", "WrongPartition"),
        ("brod 0.3.2", "OffsetOutOfRange: Code: 1", "WrongPartitionCode: Code: 3"),
        ("brod 0.4.3", "OffsetOutOfRange: Code: 1", "WrongPartitionCode: Code: 3"),
        ("samsa", "OffsetOutOfRangeError: ", "WrongPartitionError: "),
    ],
)
def test_clients_know_our_errors(
    written: Callable[[str], str], clients: Clients, wire: Wire07, client: str, beyond: str, wrong: str
) -> None:
    topic = written("ours")
    with pytest.raises(ClientError, match=f"^{beyond}$"):
        clients(client).fetch(topic, log_end(wire, topic) + 1)
    with pytest.raises(ClientError, match=f"^{wrong}$"):
        clients(client).fetch(topic, 0, partition=2)


def test_an_offset_that_a_client_writes_wrong_is_out_of_range(
    clients: Clients, wire: Wire07, topic_name: str
) -> None:
    """kafka of npm writes the upper half of an offset above 65535 into the wrong four bytes."""
    wire.send(produce(topic_name, 0, entry(b"y" * 70_000, magic=0) + entry(b"next", magic=0)))
    assert until(lambda: log_end(wire, topic_name)) == 70_022
    assert clients("kafka").fetch(topic_name, 0).next_offset == 70_022
    with pytest.raises(ClientError, match=r"^OffsetOutOfRange$"):
        clients("kafka").fetch(topic_name, 70_009)
    assert clients("brod 0.4.3").fetch(topic_name, 70_009) == ([b"next"], 70_022)


@pytest.mark.parametrize(
    ("client", "magic"),
    [("prozess", 1), ("brod 0.3.2", 0), ("brod 0.4.3", 0), ("samsa", 0), ("samsa", 1)],
)
def test_a_log_of_many_segments_is_read_in_pieces(
    clients: Clients, wire: Wire07, topic_name: str, client: str, magic: int
) -> None:
    """Answers end in the middle of an entry, and at the end of a segment."""
    sent = [b"%d " % number * (number % 60) + b"." for number in range(150)]
    for start in range(0, len(sent), 10):
        wire.send(produce(topic_name, 0, encode_set(sent[start : start + 10], magic=magic)))
    end = until(lambda: log_end(wire, topic_name) > 10_000 and log_end(wire, topic_name))
    end = until(lambda: end == log_end(wire, topic_name) and end)
    found, position = read_in_pieces(clients(client), topic_name, 700)
    assert found == sent
    assert position == end


@pytest.mark.parametrize(("client", "magic"), [("prozess", 1), ("brod 0.3.2", 0), ("brod 0.4.3", 0)])
def test_a_client_never_gets_more_than_it_asks_for(
    clients: Clients, wire: Wire07, topic_name: str, client: str, magic: int
) -> None:
    """Where not one whole message fits, they find none, and stay where they are."""
    whole = len(entry(b"whole", magic=magic))
    wire.send(produce(topic_name, 0, encode_set([b"whole", b"cut"], magic=magic)))
    until(lambda: log_end(wire, topic_name))
    assert clients(client).fetch(topic_name, 0, whole - 1) == ([], 0)
    assert clients(client).fetch(topic_name, 0, whole) == ([b"whole"], whole)
    assert clients(client).fetch(topic_name, 0, whole + 11) == ([b"whole"], whole)


def read_in_pieces(client: Client07, topic: str, size: int) -> tuple[list[bytes], int]:
    """All payloads of a topic, by fetches of so many bytes from where the last one ended."""
    found: list[bytes] = []
    position = 0
    while True:
        payloads, position = client.fetch(topic, position, size)
        if not payloads:
            return found, position
        found += payloads


@pytest.mark.parametrize("count", [1, 200])
def test_several_topics_in_one_request_of_samsa(
    clients: Clients, broker: EmbeddedBroker, wire: Wire07, topic_name: str, count: int
) -> None:
    """MULTIPRODUCE and MULTIFETCH, which no other of these clients has."""
    driver, topics = clients("samsa").driver, [f"{topic_name}-{count}-{n}" for n in (0, 1)]
    sets = [([b"a%d" % n for n in range(count)], topics[0], 0), ([b"b"], topics[1], 1)]
    driver.ask("samsa", "multiproduce", port=broker.port, sets=[wanted(*one) for one in sets])
    until(lambda: log_end(wire, topics[1], 1))
    fetches = [[topic, partition, 0, 100_000] for _, topic, partition in sets]
    found = driver.ask("samsa", "multifetch", port=broker.port, fetches=fetches)["sets"]
    assert [[bytes.fromhex(payload) for payload in one] for one in found] == [one for one, _, _ in sets]


def wanted(payloads: Sequence[bytes], topic: str, partition: int) -> list[object]:
    return [topic, partition, [payload.hex() for payload in payloads]]
