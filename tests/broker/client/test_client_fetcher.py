"""The partition fetcher and offset look-ups against a broker that misbehaves as told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidRequest,
    MessageTooLarge,
    RequestTimedOut,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.protocol.api.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NewRecord,
    TopicPartition,
)
from tests.support.client.scripted_broker import Cut, Layout, ScriptedBroker, WrongCorrelation
from tests.support.client.scripted_server import Close, Silence
from tests.support.manual_clock import ManualClock
from tests.support.until import until

TP = TopicPartition("t", 0)
TEN = [(offset, b"value %d" % offset) for offset in range(10)]


def batch(base_offset: int, count: int) -> bytes:
    return encode_batch(
        [NewRecord(b"value %d" % (base_offset + i), timestamp=1) for i in range(count)],
        base_offset=base_offset,
    )


def answer(
    data: bytes | None = b"",
    error: ErrorCode = ErrorCode.NONE,
    aborted: tuple[Any, ...] | None = None,
    high_watermark: int = 10,
    read_at: int = -1,
) -> FetchResponse:
    partition = PartitionData(
        error_code=error,
        high_watermark=high_watermark,
        last_stable_offset=10,
        log_start_offset=0,
        records=data,
        aborted_transactions=aborted,
        preferred_read_replica=read_at,
    )
    return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(partition,)),))


def log_of(*batches: tuple[int, int]) -> Callable[[FetchRequest], FetchResponse]:
    """One batch per answer: the first that reaches the asked offset."""

    def step(request: FetchRequest) -> FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        for base, count in batches:
            if base + count > offset:
                return answer(batch(base, count))
        return answer()

    return step


def offsets_answer(request: ListOffsetsRequest) -> ListOffsetsResponse:
    wanted = request.topics[0].partitions[0]
    offset = {EARLIEST_TIMESTAMP: 3, LATEST_TIMESTAMP: 9}[wanted.timestamp]
    partition = ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index, offset=offset, timestamp=-1
    )
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(partition,)),))


def offsets_error(code: ErrorCode) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=-1)
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(partition,)),))


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as scripted:
        scripted.default(ApiKey.FETCH, log_of((0, 4), (4, 1), (5, 5)))
        scripted.default(ApiKey.LIST_OFFSETS, offsets_answer)
        yield scripted


_opened: list[Cluster] = []


@pytest.fixture(autouse=True)
def close_clusters() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def cluster(broker: ScriptedBroker, clock: ManualClock | None = None, **changes: Any) -> Cluster:
    """A cluster for which only its own pauses pass time; it is closed when the test ends."""
    patient = {"request_timeout_ms": 120_000, **changes}
    config = ConsumerConfig(bootstrap_servers=broker.address, **patient)
    _opened.append(Cluster(config, clock=clock or ManualClock()))
    return _opened[-1]


def fetcher(
    broker: ScriptedBroker,
    start: int = 0,
    end: int = 10,
    poll_timeout_ms: int = 600_000,
    clock: ManualClock | None = None,
    **changes: Any,
) -> PartitionFetcher:
    found = cluster(broker, clock, **changes)
    config = found.config
    return PartitionFetcher(found, TP, start, end, config=config, poll_timeout_ms=poll_timeout_ms)  # type: ignore[arg-type]


def read(answers: Iterator[Fetched]) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for fetched in answers
        for record in records(fetched.data, start_offset=fetched.offset, max_bytes=1 << 20)
    ]


def asked_offsets(broker: ScriptedBroker) -> list[int]:
    return [r.topics[0].partitions[0].fetch_offset for r in broker.received(ApiKey.FETCH)]


def test_an_answer_carries_the_facts_of_its_partition(broker: ScriptedBroker) -> None:
    aborted = (AbortedTransaction(producer_id=7, first_offset=2),)
    broker.script(ApiKey.FETCH, answer(batch(0, 10), aborted=aborted, high_watermark=12))
    (found,) = fetcher(broker, isolation_level="read_committed")
    assert (found.offset, found.next_offset) == (0, 10)
    assert found.aborted == ((7, 2),)
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (12, 10, 0)
    assert found.broker_id == 0
    assert broker.received(ApiKey.FETCH)[0].isolation_level == 1


def test_the_next_fetch_is_on_its_way_while_the_caller_decodes(broker: ScriptedBroker) -> None:
    answers = iter(fetcher(broker))
    next(answers)
    until(lambda: asked_offsets(broker) == [0, 4])


def test_nothing_is_fetched_ahead_beyond_the_end(broker: ScriptedBroker) -> None:
    assert [offset for offset, _ in read(fetcher(broker, end=4))] == [0, 1, 2, 3]
    assert asked_offsets(broker) == [0]


def test_a_caller_may_continue_elsewhere(broker: ScriptedBroker) -> None:
    reader = fetcher(broker)
    next(reader)
    reader.advance(7)
    assert read(reader) == TEN[7:]
    assert reader.position == 10


def test_reading_ends_when_the_caller_closes(broker: ScriptedBroker) -> None:
    reader = fetcher(broker)
    next(reader)
    reader.close()
    assert list(reader) == []


@pytest.mark.parametrize(
    "failure",
    [
        Close(),
        Cut(answer(batch(4, 1)), 30),
        answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        answer(error=ErrorCode.FENCED_LEADER_EPOCH),
        answer(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        answer(error=ErrorCode.KAFKA_STORAGE_ERROR),
        FetchResponse(error_code=ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_a_passing_failure_loses_and_repeats_nothing(broker: ScriptedBroker, failure: Any) -> None:
    broker.script(ApiKey.FETCH, log_of((0, 4)), failure, failure)
    assert read(fetcher(broker)) == TEN
    assert asked_offsets(broker) == [0, 4, 4, 4, 5]


def test_a_silent_broker_is_asked_again(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.FETCH, Silence())
    assert read(fetcher(broker, clock=SYSTEM_CLOCK, request_timeout_ms=3000)) == TEN
    assert asked_offsets(broker) == [0, 0, 4, 5]


def test_a_leader_that_moved_is_followed() -> None:
    layout = Layout(leaders={"t": {0: 0}})
    with ScriptedBroker(layout, node_id=0) as old, ScriptedBroker(layout, node_id=1) as new:
        reader = fetcher(old)
        old.default(ApiKey.FETCH, log_of((0, 4)))
        new.default(ApiKey.FETCH, log_of((0, 4), (4, 1), (5, 5)))
        first = next(reader)

        def moved(_: FetchRequest) -> FetchResponse:
            return answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)

        # Fetched ahead from the old leader, where there is nothing after the first batch.
        layout.leaders["t"][0] = 1
        old.default(ApiKey.FETCH, moved)
        assert read(iter([first, *reader])) == TEN
        assert asked_offsets(new) == [4, 5]


@pytest.fixture
def racks() -> Iterator[tuple[ScriptedBroker, ScriptedBroker]]:
    """A leader that names the other broker to clients in rack b, and that broker."""
    layout = Layout(leaders={"t": {0: 0}})
    log = log_of((0, 4), (4, 1), (5, 5))

    def lead(request: FetchRequest) -> FetchResponse:
        return answer(read_at=1) if request.rack_id == "b" else log(request)

    with ScriptedBroker(layout, node_id=0) as leader, ScriptedBroker(layout, node_id=1) as follower:
        leader.default(ApiKey.FETCH, lead)
        leader.default(ApiKey.LIST_OFFSETS, offsets_answer)
        follower.default(ApiKey.FETCH, log)
        yield leader, follower


def asked_racks(broker: ScriptedBroker) -> list[str]:
    return [request.rack_id for request in broker.received(ApiKey.FETCH)]


def test_a_client_in_a_rack_reads_where_the_leader_says(
    racks: tuple[ScriptedBroker, ScriptedBroker],
) -> None:
    leader, follower = racks
    found = list(fetcher(leader, client_rack="b"))
    assert [one.broker_id for one in found] == [1, 1, 1]
    assert (asked_racks(leader), asked_offsets(leader)) == (["b"], [0])
    assert (asked_racks(follower), asked_offsets(follower)) == (["", "", ""], [0, 4, 5])
    assert read(fetcher(leader)) == TEN  # without a rack
    assert asked_racks(leader) == ["b", "", "", ""]


@pytest.mark.parametrize(
    "failure",
    [
        Close(),
        answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        answer(error=ErrorCode.OFFSET_OUT_OF_RANGE),
        answer(error=ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
def test_a_replica_that_fails_is_left_for_the_leader(
    racks: tuple[ScriptedBroker, ScriptedBroker], failure: Any
) -> None:
    leader, follower = racks
    follower.script(ApiKey.FETCH, log_of((0, 4)), failure)
    assert read(fetcher(leader, client_rack="b")) == TEN
    assert asked_offsets(follower) == [0, 4]
    assert (asked_racks(leader), asked_offsets(leader)) == (["b", "", ""], [0, 4, 5])


def test_a_replica_that_is_gone_is_left_for_the_leader(
    racks: tuple[ScriptedBroker, ScriptedBroker],
) -> None:
    leader, follower = racks
    follower.close()
    assert read(fetcher(leader, client_rack="b")) == TEN
    assert asked_racks(leader) == ["b", "", "", ""]


def test_the_leader_is_asked_again_where_to_read_after_a_while(
    racks: tuple[ScriptedBroker, ScriptedBroker],
) -> None:
    leader, follower = racks
    clock = ManualClock()
    reader = fetcher(leader, end=5, clock=clock, client_rack="b", metadata_max_age_ms=60_000)
    first = next(reader)
    until(lambda: asked_offsets(follower) == [0, 4])
    reader.advance(3)
    clock.advance(60)
    assert read(iter([first, *reader])) == [*TEN[:4], *TEN[3:5]]
    assert (asked_racks(leader), asked_offsets(leader)) == (["b", "b"], [0, 3])
    assert asked_offsets(follower) == [0, 4, 3, 4]


def test_a_failure_that_lasts_is_raised_when_there_is_no_time(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the test's clock, and without jitter: however slow the machine, it is tried four times.
    monkeypatch.setattr("pyspark_kafkalog.client.retry._JITTER", 0)
    clock = ManualClock()
    broker.default(ApiKey.FETCH, Close())
    seconds = {"request_timeout_ms": 60_000, "retry_backoff_ms": 300_000, "retry_backoff_max_ms": 300_000}
    started = clock.monotonic()
    told = rf"fetching t-0 at offset 0: timed out after 4 attempt\(s\).*{broker.address}"
    with pytest.raises(ConnectionLost, match=told):
        next(fetcher(broker, poll_timeout_ms=1_000_000, clock=clock, **seconds))
    assert clock.monotonic() - started == 900
    assert len(broker.received(ApiKey.FETCH)) == 4


def test_a_topic_that_stays_unknown_is_not_waited_for_long(broker: ScriptedBroker) -> None:
    broker.layout.leaders.clear()
    clock = ManualClock()
    started = clock.monotonic()
    with pytest.raises(UnknownTopicOrPartition, match="topic t: no such topic"):
        next(fetcher(broker, clock=clock))
    assert clock.monotonic() - started < 4


def test_an_offset_refused_although_it_is_in_range_is_tried_again(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.FETCH, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert read(fetcher(broker, start=5)) == TEN[5:]


def test_empty_answers_before_the_end_are_asked_again_without_haste(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.FETCH, answer(), answer(None), answer())
    clock = ManualClock()
    started = clock.monotonic()
    assert read(fetcher(broker, clock=clock, retry_backoff_ms=50, retry_backoff_max_ms=50)) == TEN
    assert clock.monotonic() - started > 3 * 0.04


def test_nothing_before_the_end_is_an_error_with_the_facts(broker: ScriptedBroker) -> None:
    broker.default(ApiKey.FETCH, answer())
    clock = ManualClock()
    started = clock.monotonic()
    slow = {"retry_backoff_ms": 20_000, "retry_backoff_max_ms": 20_000}
    with pytest.raises(
        RequestTimedOut, match=r"t-0: nothing to read at offset 2 within 200000 ms.*ends at 10"
    ) as e:
        next(fetcher(broker, start=2, poll_timeout_ms=200_000, clock=clock, **slow))
    assert "high watermark 10" in str(e.value)
    assert "read_uncommitted" in str(e.value)
    assert 100 < clock.monotonic() - started < 200
    assert 5 < len(asked_offsets(broker)) < 15


def test_a_first_batch_larger_than_the_fetch_size_is_read(broker: ScriptedBroker) -> None:
    large = encode_batch([NewRecord(bytes(300_000), timestamp=1)])
    broker.script(ApiKey.FETCH, answer(large))
    (found,) = fetcher(broker, end=1, max_partition_fetch_bytes=1000)
    assert found.data.nbytes == len(large)
    assert broker.received(ApiKey.FETCH)[0].topics[0].partitions[0].partition_max_bytes == 1000


def test_fetches_grow_as_far_as_what_is_left_needs_it(broker: ScriptedBroker) -> None:
    ten = encode_batch([NewRecord(bytes(10_000), timestamp=1)] * 10)

    def filled(request: FetchRequest) -> FetchResponse:
        asked = request.topics[0].partitions[0]
        starts = [asked.fetch_offset + 10 * i for i in range(asked.partition_max_bytes // len(ten))]
        data = b"".join(start.to_bytes(8, "big") + ten[8:] for start in starts)
        return answer(data, high_watermark=10_000)

    broker.default(ApiKey.FETCH, filled)
    *_, last = fetcher(broker, end=1700, max_partition_fetch_bytes=4 << 20)
    assert last.next_offset >= 1700
    sizes = [r.topics[0].partitions[0].partition_max_bytes for r in broker.received(ApiKey.FETCH)]
    *grown, rest = sizes
    assert grown == [1 << 20, 2 << 20, 4 << 20, 4 << 20, 4 << 20]
    assert len(ten) * (1700 - sum(size // len(ten) for size in grown) * 10) // 10 == rest


def test_a_batch_that_an_old_broker_cuts_is_asked_for_with_more_room(broker: ScriptedBroker) -> None:
    large = encode_batch([NewRecord(bytes(5000), timestamp=1)])

    def cut(request: FetchRequest) -> FetchResponse:
        return answer(large[: request.topics[0].partitions[0].partition_max_bytes])

    broker.default(ApiKey.FETCH, cut)
    (found,) = fetcher(broker, end=1, max_partition_fetch_bytes=1000)
    assert bytes(found.data) == large
    sizes = [r.topics[0].partitions[0].partition_max_bytes for r in broker.received(ApiKey.FETCH)]
    assert sizes == [1000, 2000, 4000, 8000]
    with pytest.raises(MessageTooLarge, match=r"t-0: the batch at offset 0 .*fetch.max.bytes is 2000"):
        next(fetcher(broker, end=1, max_partition_fetch_bytes=1000, fetch_max_bytes=2000))


@pytest.mark.parametrize(
    "nonsense", [WrongCorrelation(answer(batch(0, 10))), FetchResponse(), Cut(answer(), 0)]
)
def test_nonsense_is_an_error_that_names_the_broker(broker: ScriptedBroker, nonsense: Any) -> None:
    broker.default(ApiKey.FETCH, nonsense)
    with pytest.raises((InvalidRequest, ConnectionLost), match=broker.address):
        next(fetcher(broker, retry_backoff_ms=100_000))


def test_a_final_error_of_the_broker_is_raised_at_once(broker: ScriptedBroker) -> None:
    broker.default(ApiKey.FETCH, answer(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ServerError, match=r"^TOPIC_AUTH\w+: .*t-0 at offset 0: this needs Read on topic t$"):
        next(fetcher(broker))
    assert asked_offsets(broker) == [0]


def lookup(broker: ScriptedBroker, timestamp: int) -> int:
    found = list_offsets(cluster(broker), {TP: timestamp})
    return found[TP].offset


def test_a_look_up_is_repeated_after_a_passing_failure(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.LIST_OFFSETS, offsets_error(ErrorCode.NOT_LEADER_OR_FOLLOWER), Close())
    assert lookup(broker, LATEST_TIMESTAMP) == 9
    assert len(broker.received(ApiKey.LIST_OFFSETS)) == 3


def test_a_topic_of_a_format_without_times_has_no_record_that_late(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.LIST_OFFSETS, offsets_error(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT))
    assert lookup(broker, 1_000_000) == -1


def test_a_look_up_ends_with_a_final_error(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.LIST_OFFSETS, offsets_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ServerError, match=r"t-0: this needs Describe on topic t$"):
        lookup(broker, LATEST_TIMESTAMP)


def test_a_look_up_that_leaves_out_what_was_asked_is_nonsense(broker: ScriptedBroker) -> None:
    broker.default(ApiKey.LIST_OFFSETS, ListOffsetsResponse())
    with pytest.raises(InvalidRequest, match=rf"{broker.address}.*lacks t-0"):
        lookup(broker, LATEST_TIMESTAMP)


def test_the_maximum_timestamp_needs_a_broker_that_knows_it(broker: ScriptedBroker) -> None:
    broker.versions[ApiKey.LIST_OFFSETS] = (1, 6)
    with pytest.raises(UnsupportedVersion, match=broker.address):
        lookup(broker, MAX_TIMESTAMP)


def test_one_look_up_asks_every_leader_once() -> None:
    layout = Layout(leaders={"t": {0: 0, 1: 1, 2: 0}})

    def end(request: ListOffsetsRequest) -> ListOffsetsResponse:
        partitions = tuple(
            ListOffsetsPartitionResponse(partition_index=p.partition_index, offset=100 + p.partition_index)
            for p in request.topics[0].partitions
        )
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=partitions),))

    with ScriptedBroker(layout, node_id=0) as first, ScriptedBroker(layout, node_id=1) as second:
        first.default(ApiKey.LIST_OFFSETS, end)
        second.default(ApiKey.LIST_OFFSETS, end)
        wanted = {TopicPartition("t", p): LATEST_TIMESTAMP for p in range(3)}
        found = list_offsets(cluster(first), wanted)
        assert {tp.partition: entry.offset for tp, entry in found.items()} == {0: 100, 1: 101, 2: 102}
        assert len(first.received(ApiKey.LIST_OFFSETS)) == len(second.received(ApiKey.LIST_OFFSETS)) == 1


def test_an_answer_stays_as_it_is_as_long_as_somebody_looks_at_it(broker: ScriptedBroker) -> None:
    batches = [encode_batch([NewRecord(bytes([i]) * 300_000, timestamp=1)], base_offset=i) for i in range(8)]
    broker.script(ApiKey.FETCH, *(answer(each) for each in batches))
    kept = [fetched.data for fetched in fetcher(broker, end=8)]
    assert [bytes(data) for data in kept] == batches


def test_memory_of_answers_that_nobody_looks_at_is_used_again(broker: ScriptedBroker) -> None:
    batches = [encode_batch([NewRecord(bytes([i]) * 300_000, timestamp=1)], base_offset=i) for i in range(8)]
    broker.script(ApiKey.FETCH, *(answer(each) for each in batches))
    memories = set()
    for number, fetched in enumerate(fetcher(broker, end=8)):
        assert bytes(fetched.data) == batches[number]
        memories.add(id(fetched.data.obj))
    assert len(memories) <= 3
