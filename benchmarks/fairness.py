"""How long does one client's request wait beside another client's costly ones?

Each row is an attack that once stopped everybody else for seconds: its requests go over one connection, and
on another a client sends short requests, one after the other, of which the median and the worst round trip
are taken. They are ApiVersions, a Produce and a Fetch of one small batch by turns; at the listener of 0.7
PRODUCE with OFFSETS. One pass, no rounds. The broker is a process of its own; the notes have the time that an
attack took. The last rows have ten clients beside two attackers at once, with one network thread and with
four.
"""

from __future__ import annotations

import itertools
import socket
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.broker import scratch
from benchmarks.broker07 import encode07
from benchmarks.harness import LIMIT, Row, cost
from benchmarks.raw_client import RawClient, Wire, encode, fetch_request, produce_request
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.formats import v07
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.protocol.api import transactions
from pyspark_kafkalog.protocol.api.configs import DescribeConfigsRequest, DescribeConfigsResource
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.groups import (
    DescribeGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.protocol.v07 import OffsetsRequest, ProduceRequest
from pyspark_kafkalog.types import LATEST_TIMESTAMP, NewRecord

MEDIAN_LIMIT_MS, WORST_LIMIT_MS = 5.0, 250.0
_MESSAGES = 262_140
_SECONDS = 3.0  # A client is measured for so long where the attack is over sooner: it is then begun again

_Attack = Callable[[], object]
_Trip = Callable[[], object]


def run(rounds: int = 1) -> list[Row]:  # noqa: ARG001
    """All rows of this question; one to three minutes."""
    rows: list[Row] = []
    with scratch() as directory:
        for number, (name, prepare) in enumerate(ATTACKS.items()):
            rows += _beside(name, prepare, directory / str(number))
        for network_threads in (1, 4):
            for name in CROWDED:
                crowd = f"{directory}-{network_threads}-{len(rows)}"
                rows += _beside(
                    name, ATTACKS[name], Path(crowd), clients=10, attackers=2, threads=network_threads
                )
    return rows


def _beside(
    name: str,
    prepare: Callable[[int, int], _Attack],
    directory: Path,
    *,
    clients: int = 1,
    attackers: int = 1,
    threads: int = 1,
) -> list[Row]:
    port07 = _free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:{port07}",
        "num.network.threads": threads,
        "num.partitions": 1,
        "group.initial.rebalance.delay.ms": 1000,
    }
    with start_broker(settings, data_dir=directory) as broker:
        attacks = [prepare(broker.port, port07) for _ in range(attackers)]
        if clients > 1:
            name = f"{name}, twice at once, {clients} clients, {threads} network threads"
        trips = [(name, [_trips(broker.port) for _ in range(clients)])]
        if "0.7" in name:
            trips.append((f"{name}, its own listener", [_trips07(port07)]))
        rows = []
        for told, each in trips:
            for trip in each:
                for _ in range(50):
                    trip()
            found, took = _measured(attacks, each)
            rows += [
                _row(f"{told}: median", statistics.median(found), MEDIAN_LIMIT_MS, took),
                _row(f"{told}: worst", max(found), WORST_LIMIT_MS, took),
            ]
        return rows


def _row(question: str, seconds: float, limit_ms: float, took: float) -> Row:
    return cost(question, 1000 * seconds, limit_ms, "ms", 1.0, f"{LIMIT}; the attack took {took:.2f} s")


def _measured(attacks: Sequence[_Attack], trips: Sequence[_Trip]) -> tuple[list[float], float]:
    """Round trips in seconds while the attacks go on, and how long one attack took."""
    until = time.monotonic() + _SECONDS
    with ThreadPoolExecutor(len(attacks) + len(trips)) as threads:
        attacking = [threads.submit(_attacks, attack, until) for attack in attacks]
        going = [
            threads.submit(_round_trips, trip, lambda: all(each.done() for each in attacking))
            for trip in trips
        ]
        found = [seconds for each in going for seconds in each.result()]
        took = [seconds for each in attacking for seconds in each.result()]
    return found, statistics.median(took)


def _attacks(attack: _Attack, until: float) -> list[float]:
    took: list[float] = []
    while not took or time.monotonic() < until:
        began = time.monotonic()
        attack()
        took.append(time.monotonic() - began)
    return took


def _round_trips(trip: _Trip, over: Callable[[], bool]) -> list[float]:
    found = []
    while not over():
        began = time.perf_counter()
        trip()
        found.append(time.perf_counter() - began)
        time.sleep(0.001)
    return found


def _trips(port: int) -> _Trip:
    """Short requests of today's clients, by turns."""
    client = RawClient(port)
    client.create_topic("small")
    data = bytes(encode_batch([NewRecord(b"x" * 100, timestamp=_now_ms())]))
    client.produce("small", data, 2)
    requests = (encode(produce_request("small", data)), encode(fetch_request("small", 0, 200)))
    frames = itertools.cycle((*requests, encode(ApiVersionsRequest(), 0)))
    return lambda: client.answer_bytes(next(frames))


def _trips07(port: int) -> _Trip:
    """A PRODUCE, and OFFSETS to see it done."""
    wire, frame = _Wire(port), _produce_and_offsets("small07", v07.encode_set([b"x" * 100]))

    def trip() -> None:
        wire.send(frame)
        wire.skip()

    return trip


class _Wire(Wire):
    """As one attacks with it."""

    def calls(self, frames: bytes, count: int = 1) -> None:
        """Send, and wait for the answers meanwhile."""
        sender = threading.Thread(target=self.send, args=(frames,))
        sender.start()
        for _ in range(count):
            self.skip()
        sender.join()


def _calls(port: int, request: Any, version: int | None = None, *, times: int = 1) -> _Attack:
    wire, frames = _Wire(port), encode(request, version) * times
    return lambda: wire.calls(frames, times)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _produce_and_offsets(topic: str, data: bytes) -> bytes:
    """PRODUCE, which 0.7 does not answer, and OFFSETS, which it does once that is done."""
    offsets = OffsetsRequest(topic, 0, LATEST_TIMESTAMP, 1)
    return encode07(ProduceRequest(topic, 0, data)) + encode07(offsets)


def _old_produce(port: int, _port07: int, *, magic: int, codec: Codec, times: int) -> _Attack:
    """Sets of very many messages, compressed or not."""
    data = encode_set([NewRecord(None, None, _now_ms())] * _MESSAGES, magic=magic, codec=codec)
    RawClient(port).create_topic("old")
    return _calls(port, produce_request("old", data), 2, times=times)


def _produce07(_port: int, port07: int) -> _Attack:
    """A set of 3.25 M messages without payloads, compressed twice."""
    block = zlib.compressobj(9, wbits=31)
    inner = block.compress(bytes.fromhex("0000000500" + "00000000") * 3_250_000) + block.flush()
    data = v07.encode_message(
        compress(Codec.GZIP, v07.encode_message(inner, codec=Codec.GZIP)), codec=Codec.GZIP
    )
    wire = _Wire(port07)
    frames = _produce_and_offsets("many07", data)
    return lambda: wire.calls(frames)


def _offsets_by_time(port: int, _port07: int) -> _Attack:
    """20,000 times the last record of a batch that is hard to look through."""
    client, now = RawClient(port), _now_ms()
    client.create_topic("timed")
    new = [NewRecord(None, None, now + number // 4) for number in range(400_000)]
    data = bytes(encode_batch(new, codec=Codec.ZSTD))
    client.answer_bytes(encode(produce_request("timed", data)))
    partitions = tuple(
        ListOffsetsPartition(partition_index=0, timestamp=now + 99_000 + number % 900)
        for number in range(19_000)
    )
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name="timed", partitions=partitions),))
    return _calls(port, request, 5)


def _auto_creation(port: int, _port07: int) -> _Attack:
    """Metadata for 3,000 topics that are not there: others each time, as what exists is looked up only."""
    wire, passes = _Wire(port), itertools.count()

    def attack() -> None:
        name = f"unknown-{next(passes)}"
        topics = tuple(MetadataRequestTopic(name=f"{name}-{number}") for number in range(3000))
        wire.calls(encode(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 4))

    return attack


def _pipelined_metadata(port: int, _port07: int) -> _Attack:
    """2,000 requests in one go for a topic of 1,000 partitions."""
    RawClient(port).create_topic("wide", 1000)
    frame = encode(MetadataRequest(topics=(MetadataRequestTopic(name="wide"),)), 4)
    wire = _Wire(port)
    return lambda: wire.calls(frame * 2000, 2000)


def _old_fetch(port: int, _port07: int) -> _Attack:
    """A batch of very many records, told to a client of 0.8."""
    client = RawClient(port)
    client.create_topic("newer")
    data = bytes(encode_batch([NewRecord(None, None, _now_ms())] * _MESSAGES, codec=Codec.GZIP))
    client.answer_bytes(encode(produce_request("newer", data)))
    return _calls(port, fetch_request("newer", 0, 1 << 20), 0, times=2)


def _fetch07(port: int, port07: int) -> _Attack:
    """An entry of 0.7 with very many messages, told to today's clients."""
    wire07 = _Wire(port07)
    data = v07.encode_message(compress(Codec.GZIP, v07.encode_set([b"0123"] * 100_000)), codec=Codec.GZIP)
    wire07.calls(_produce_and_offsets("told", data))
    time.sleep(4)  # flushed
    return _calls(port, fetch_request("told", 0, 1 << 20), times=2)


_WIDE = 10_000  # partitions of the topic that groups and transactions have to do with


def _idle_partitions(port: int, _port07: int) -> _Attack:
    """A consumer of 10,000 partitions that has read everything, and does not wait."""
    RawClient(port).create_topic("wide", _WIDE)
    wants = tuple(FetchPartition(number, partition_max_bytes=1 << 20) for number in range(_WIDE))
    topics = (FetchTopic(topic="wide", partitions=wants),)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    return _calls(port, request, 12)


def _with_offsets(port: int, groups: int) -> None:
    """Groups ``g0`` and so on, with an offset for each partition of a wide topic."""
    client = RawClient(port)
    client.create_topic("wide", _WIDE)
    for number in range(groups):
        client.call(_commit_request(f"g{number}", _WIDE), 8)


def _commit_request(group: str, count: int) -> OffsetCommitRequest:
    offsets = tuple(OffsetCommitRequestPartition(n % _WIDE, committed_offset=5) for n in range(count))
    topics = (OffsetCommitRequestTopic(name="wide", partitions=offsets),)
    return OffsetCommitRequest(group, generation_id_or_member_epoch=-1, topics=topics)


def _commit(port: int, _port07: int) -> _Attack:
    """Nearly as many offsets as a request may have."""
    _with_offsets(port, 1)
    return _calls(port, _commit_request("g0", 19_900), 8)


def _committed_by_name(port: int, _port07: int) -> _Attack:
    """One offset of one group, very often in one request."""
    _with_offsets(port, 1)
    topics = (OffsetFetchRequestTopics(name="wide", partition_indexes=(0,)),)
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g0", topics=topics),) * 3000)
    return _calls(port, request, 8)


def _all_committed(port: int, _port07: int) -> _Attack:
    """All offsets of thirty groups, each named ten times."""
    _with_offsets(port, 30)
    groups = tuple(OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(30))
    return _calls(port, OffsetFetchRequest(groups=groups * 10), 8)


def _described_groups(port: int, _port07: int) -> _Attack:
    """A group of 200 members, named 1,000 times; they have 4 kB of metadata each."""
    join = JoinGroupRequest(
        group_id="g", session_timeout_ms=300_000, rebalance_timeout_ms=300_000, protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol("range", bytes(4000)),),
    )  # fmt: skip
    members = [_Wire(port) for _ in range(200)]
    for member in members:
        member.send(encode(join, 3))
    for member in members:
        member.skip()
    wire, frame = _Wire(port), encode(DescribeGroupsRequest(groups=("g",) * 1000), 4)
    members.append(wire)  # they stay connected while it goes on
    return lambda: members[-1].calls(frame)


def _described_transactions(port: int, _port07: int) -> _Attack:
    """An open transaction in 10,000 partitions, named 300 times."""
    client = RawClient(port)
    client.create_topic("wide", _WIDE)
    producer = client.call(InitProducerIdRequest("t", 600_000), 2)
    topics = (transactions.AddPartitionsToTxnTopic("wide", tuple(range(_WIDE))),)
    adding = transactions.AddPartitionsToTxnRequest(
        (), "t", producer.producer_id, producer.producer_epoch, topics
    )
    client.call(adding, 2)
    return _calls(port, transactions.DescribeTransactionsRequest(("t",) * 300), 0)


def _listed_transactions(port: int, _port07: int) -> _Attack:
    """3,000 transactional ids, of which those of 19,000 producers are asked for."""
    client = RawClient(port)
    for number in range(3000):
        client.call(InitProducerIdRequest(f"t{number}", 600_000), 2)
    producers = tuple(range(1_000_000, 1_019_000))
    return _calls(port, transactions.ListTransactionsRequest(producer_id_filters=producers), 0)


def _described_configs(port: int, _port07: int) -> _Attack:
    """All properties of the broker with their texts, 990 times."""
    resources = (DescribeConfigsResource(4, "0", None),) * 990
    request = DescribeConfigsRequest(resources, include_synonyms=True, include_documentation=True)
    return _calls(port, request, 3)


def _of_old_sets(magic: int, codec: Codec, times: int) -> Callable[[int, int], _Attack]:
    return lambda port, port07: _old_produce(port, port07, magic=magic, codec=codec, times=times)


ATTACKS: dict[str, Callable[[int, int], _Attack]] = {
    "Produce 2, ten sets v1 of 262,140 messages in gzip": _of_old_sets(1, Codec.GZIP, 10),
    "Produce 2, three sets v0 of 262,140 messages in gzip": _of_old_sets(0, Codec.GZIP, 3),
    "Produce 2, three times 262,140 messages v0, not compressed": _of_old_sets(0, Codec.NONE, 3),
    "PRODUCE of 0.7 with 3.25 M messages": _produce07,
    "ListOffsets, 19,000 times in one zstd batch": _offsets_by_time,
    "Metadata 4 for 3,000 unknown topics": _auto_creation,
    "2,000 pipelined Metadata for 1,000 partitions": _pipelined_metadata,
    "Fetch 0 of a gzip batch v2 of 262,140 records": _old_fetch,
    "Fetch 12 of a 0.7 entry of 100,000 messages": _fetch07,
    "Fetch of 10,000 partitions at their end": _idle_partitions,
    "OffsetCommit of 19,900 offsets": _commit,
    "OffsetFetch, 3,000 times a group with 10,000 offsets": _committed_by_name,
    "OffsetFetch, ten times all of 30 groups with 10,000 offsets each": _all_committed,
    "DescribeGroups, 1,000 times a group of 200 members": _described_groups,
    "DescribeTransactions, 300 times one with 10,000 partitions": _described_transactions,
    "ListTransactions of 3,000, by 19,000 producers": _listed_transactions,
    "DescribeConfigs, 990 times the broker": _described_configs,
}

CROWDED = (
    "Produce 2, ten sets v1 of 262,140 messages in gzip",
    "ListOffsets, 19,000 times in one zstd batch",
    "Fetch 0 of a gzip batch v2 of 262,140 records",
    "OffsetFetch, ten times all of 30 groups with 10,000 offsets each",
)
"""Those that two attackers do at once, beside ten clients."""
