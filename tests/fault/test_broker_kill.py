"""SIGKILL under load: what was acknowledged is there after a restart, once, in order, at any flush setting.

A killed process loses nothing that it wrote: the system keeps the pages. What a power cut may take is another
matter, see docs/operations.md and test_power_cut.py.
"""

from __future__ import annotations

import random
import threading

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from tests.support.protocol.raw_client import RawClient, batch, produce_request
from tests.support.until import until

FLUSH_SETTINGS = {
    "each append": {"log.flush.interval.messages": 1},
    "every 10 ms": {"log.flush.interval.ms": 10, "log.flush.scheduler.interval.ms": 10},
    "never": {"log.flush.interval.ms": 86_400_000},
}
PARTITIONS = 3
IN_FLIGHT = 5
BATCHES_BEFORE_A_KILL = (1, 25)
"""Answers that each producer has had by then; with a sync each, more would take a busy disk a minute."""


class Load(threading.Thread):
    """*Its results are read after `join`.* One idempotent producer on one partition, five requests in flight.

    It sends batches numbered from ``first`` until the connection breaks; ``acknowledged`` has each answered
    batch's number and offset.
    """

    def __init__(self, port: int, partition: int, producer_id: int, first: int, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.client = RawClient(port)
        self.partition, self.producer_id, self.next = partition, producer_id, first
        self.rng = rng
        self.acknowledged: list[tuple[int, int]] = []
        self.failures: list[str] = []

    def run(self) -> None:
        waiting: list[int] = []
        try:
            while True:
                while len(waiting) < IN_FLIGHT:
                    request = {("t", self.partition): numbered(self.next, self.producer_id)}
                    self.client.send(produce_request(request, acks=self.rng.choice((1, -1))))
                    waiting.append(self.next)
                    self.next += 1
                result = self.client.receive().responses[0].partition_responses[0]
                if result.error_code != 0:
                    self.failures.append(f"batch {waiting[0]}: {result.error_code!r} {result.error_message}")
                    return
                self.acknowledged.append((waiting.pop(0), result.base_offset))
        except OSError:
            return
        finally:
            self.client.close()


def size_of(number: int) -> int:
    """How many records batch ``number`` has."""
    return 1 + number % 3


def numbered(number: int, producer_id: int) -> bytes:
    """Batch ``number``: its records say which they are; their sequences go on from the batches before."""
    sequence = sum(size_of(n) for n in range(number % 3)) + number // 3 * 6
    codec = (Codec.NONE, Codec.LZ4)[number % 2]
    values = [b"%d.%d:" % (number, i) + b"x" * (number % 7 * 100) for i in range(size_of(number))]
    return batch(*values, codec=codec, producer_id=producer_id, epoch=0, sequence=sequence)


def numbers_in_log(client: RawClient, partition: int) -> list[tuple[int, int]]:
    """Number and base offset of every batch in the log; each must be whole, and the offsets without a gap."""
    records = client.read("t", 0, partition)
    assert [r.offset for r in records] == list(range(len(records)))
    found: list[tuple[int, int]] = []
    pos = 0
    while pos < len(records):
        number = int((records[pos].value or b"").split(b".")[0])
        values = [(r.value or b"").split(b":")[0] for r in records[pos : pos + size_of(number)]]
        assert values == [b"%d.%d" % (number, i) for i in range(size_of(number))]
        found.append((number, pos))
        pos += size_of(number)
    return found


def run_round(broker: EmbeddedBroker, rng: random.Random, first: list[int], ids: list[int]) -> list[int]:
    """Load, kill, restart, check; returns the number of the next batch of each partition."""
    loads = [Load(broker.port, p, ids[p], first[p], rng) for p in range(PARTITIONS)]
    for load in loads:
        load.start()
    enough = rng.randint(*BATCHES_BEFORE_A_KILL)
    until(lambda: all(len(load.acknowledged) >= enough or not load.is_alive() for load in loads))
    broker.kill()
    for load in loads:
        load.join(60)
        assert not load.is_alive()
        assert load.failures == []
        assert len(load.acknowledged) >= enough
    broker.start()
    following = []
    with RawClient(broker.port) as client:
        for load in loads:
            found = numbers_in_log(client, load.partition)
            assert [number for number, _ in found] == list(range(len(found)))
            assert set(load.acknowledged) <= set(found)
            assert len(found) <= load.next  # nothing that was never sent
            following.append(len(found))
            # The last batches were sent before the kill: sent again they are known, not appended.
            for number, offset in found[-3:]:
                result = client.produce("t", numbered(number, load.producer_id), load.partition)
                assert (result.error_code, result.base_offset) == (0, offset)
    return following


@pytest.mark.long("brokers that are killed many times")
@pytest.mark.parametrize("flush", FLUSH_SETTINGS)
def test_no_acknowledged_record_is_lost(flush: str) -> None:
    rounds(flush, seed=1, count=3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("flush", FLUSH_SETTINGS)
def test_no_acknowledged_record_is_lost_in_many_rounds(flush: str, seed: int) -> None:
    rounds(flush, seed, count=20)


def rounds(flush: str, seed: int, count: int) -> None:
    rng = random.Random(f"{flush} {seed}")
    properties = FLUSH_SETTINGS[flush] | {"log.segment.bytes": rng.choice([3_000, 40_000, 1 << 30])}
    with start_broker(properties) as broker:
        with RawClient(broker.port) as client:
            assert client.create_topic("t", PARTITIONS).error_code == 0
            ids = [client.ask(InitProducerIdRequest()).producer_id for _ in range(PARTITIONS)]
        following = [0] * PARTITIONS
        for _ in range(count):
            following = run_round(broker, rng, following, ids)
        assert min(following) > 0
