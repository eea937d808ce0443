"""What a task does with a log that is whole, cut, late or gone: checklist C, B18, failOnDataLoss."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.datasource.batch import batch_reader
from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader, KafkaInputPartition
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss
from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidConfig,
    InvalidTimestamp,
    KafkaError,
    RequestTimedOut,
)
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NewRecord
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.client.scripted_server import Close
from tests.support.formats.vectors import vector
from tests.support.until import until

FIFTEEN = (range(5), range(5, 10), range(10, 15))
QUICK = {"kafka.retry.backoff.ms": "1", "fetchOffset.retryIntervalMs": "1", "kafka.fetch.max.wait.ms": "1"}


def reader(broker: ScriptedBroker, **options: str) -> BatchReader:
    given = {"kafka.bootstrap.servers": broker.address, "subscribe": "t", **QUICK, **options}
    return BatchReader(parse_batch_options(given), ("value", "offset"))


def task(start: int, end: int) -> KafkaInputPartition:
    return KafkaInputPartition("t", 0, start, end, 0)


def offsets(rows: Iterator[Any]) -> list[int]:
    return [offset for batch in rows for offset in batch.column("offset").to_pylist()]


@pytest.fixture(params=["true", "false"])
def fail_on_data_loss(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read_or_loss(
    broker: ScriptedBroker, wanted: InputPartition, fail: str, **options: str
) -> tuple[list[int], str]:
    """The offsets that were read, and the text of the data loss if that ended it."""
    found: list[int] = []
    try:
        for batch in reader(broker, failOnDataLoss=fail, **options).read(wanted):
            found += batch.column("offset").to_pylist()
    except DataLoss as e:
        return found, str(e)
    return found, ""


def test_placeholders_are_resolved_by_the_task() -> None:
    log = ScriptedLog(batches(*FIFTEEN), start=0)
    with serving(log) as broker:
        assert offsets(reader(broker).read(task(-2, -1))) == list(range(15))
        log.keep(start=5)
        assert offsets(reader(broker).read(task(-2, 12))) == list(range(5, 12))
        assert offsets(reader(broker).read(task(7, -1))) == list(range(7, 15))


def test_an_empty_range_and_the_task_of_an_empty_plan_read_nothing() -> None:
    with serving(ScriptedLog()) as broker:
        assert offsets(reader(broker).read(task(-2, -1))) == []
        assert offsets(reader(broker).read(InputPartition(None))) == []
        assert broker.received(ApiKey.FETCH) == []


def test_offsets_below_the_log_are_lost(fail_on_data_loss: str) -> None:
    with serving(ScriptedLog(batches(*FIFTEEN[1:]), start=5)) as broker:
        found, loss = read_or_loss(broker, task(2, 12), fail_on_data_loss)
    if fail_on_data_loss == "true":
        assert found == []
        assert "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE" in loss
        assert "[2, 12) of t-0: the log holds [5, 15)" in loss
        assert "set the source option failOnDataLoss to false" in loss
    else:
        assert (found, loss) == (list(range(5, 12)), "")


@pytest.mark.parametrize(
    ("log", "wanted", "holds"),
    [
        (ScriptedLog(batches(range(5))), (7, 12), "[0, 5)"),
        (ScriptedLog(batches(range(20, 30)), start=20), (2, 12), "[20, 30)"),
        (ScriptedLog(start=20), (2, 30), "[20, 20)"),
    ],
    ids=["above", "below", "empty"],
)
def test_a_range_of_which_the_log_has_nothing_is_lost(
    log: ScriptedLog, wanted: tuple[int, int], holds: str, fail_on_data_loss: str
) -> None:
    with serving(log) as broker:
        found, loss = read_or_loss(broker, task(*wanted), fail_on_data_loss)
        fetches = len(broker.received(ApiKey.FETCH))
    assert (found, fetches) == ([], 1)
    lost = "[{}, {})".format(*wanted)
    assert (f"{lost} of t-0: the log holds {holds}" in loss) == (fail_on_data_loss == "true")


def test_retention_between_two_fetches_that_the_broker_refuses(fail_on_data_loss: str) -> None:
    log = ScriptedLog(batches(*FIFTEEN))
    with serving(log) as broker:
        broker.script(ApiKey.FETCH, _then(log.fetch, lambda: log.keep(start=10)))
        found, loss = read_or_loss(broker, task(0, 15), fail_on_data_loss)
    if fail_on_data_loss == "true":
        assert found == list(range(5))
        assert "[5, 15) of t-0: the log holds [10, 15)" in loss
    else:
        assert (found, loss) == ([*range(5), *range(10, 15)], "")


def test_retention_between_two_fetches_that_shows_in_the_answer_only(fail_on_data_loss: str) -> None:
    log = ScriptedLog(batches(*FIFTEEN))

    def from_ten(request: Any) -> Any:
        """The broker looks at the range, then retention runs, then it reads."""
        log.keep(start=10)
        anywhere = ScriptedLog(batches(*FIFTEEN[2:]), start=0)
        return _with_part(anywhere.fetch(request), log_start_offset=10)

    with serving(log) as broker:
        broker.script(ApiKey.FETCH, log.fetch, from_ten)
        found, loss = read_or_loss(broker, task(0, 15), fail_on_data_loss)
    if fail_on_data_loss == "true":
        assert found == list(range(5))
        assert "[5, 15) of t-0: the log holds [10, 15)" in loss
    else:
        assert (found, loss) == ([*range(5), *range(10, 15)], "")


def test_a_gap_that_compaction_left_is_not_a_loss(fail_on_data_loss: str) -> None:
    gaps = (range(1, 4, 2), range(10, 15), range(20, 40, 5))
    with serving(ScriptedLog(batches(*gaps))) as broker:
        found, loss = read_or_loss(broker, task(0, 36), fail_on_data_loss)
    assert (found, loss) == ([o for r in gaps for o in r], "")


@pytest.mark.usefixtures("pauses_take_no_time")
def test_a_log_that_ends_before_the_range_is_lost_once_the_wait_is_over(fail_on_data_loss: str) -> None:
    with serving(ScriptedLog(batches(range(5)))) as broker:
        patience = {"kafkaConsumer.pollTimeoutMs": "30000"}
        found, loss = read_or_loss(broker, task(2, 9), fail_on_data_loss, **patience)
    assert found == [2, 3, 4]
    assert ("[5, 9) of t-0: the log holds [0, 5)" in loss) == (fail_on_data_loss == "true")


@pytest.mark.usefixtures("pauses_take_no_time")
def test_records_that_the_log_has_and_nobody_sends_are_late_and_not_lost(fail_on_data_loss: str) -> None:
    log = ScriptedLog(batches(*FIFTEEN))
    nothing = ScriptedLog()
    with serving(log) as broker:
        broker.default(ApiKey.FETCH, lambda request: nothing.fetch(request))
        patience = {"kafkaConsumer.pollTimeoutMs": "30000"}
        with pytest.raises(RequestTimedOut, match=r"t-0: nothing to read at offset 0 within 30000 ms"):
            read_or_loss(broker, task(0, 15), fail_on_data_loss, **patience)


def test_of_parts_that_retention_has_passed_the_first_lost_nothing(fail_on_data_loss: str) -> None:
    log = ScriptedLog(batches(*FIFTEEN))
    with serving(log) as broker:
        first, second, last = reader(broker, maxRecordsPerPartition="5").partitions()
        log.keep(start=10)
        assert read_or_loss(broker, first, fail_on_data_loss) == ([], "")
        found, loss = read_or_loss(broker, second, fail_on_data_loss)
        assert read_or_loss(broker, last, fail_on_data_loss) == (list(range(10, 15)), "")
    assert found == []
    assert ("[5, 10) of t-0: the log holds [10, 15)" in loss) == (fail_on_data_loss == "true")


@pytest.mark.parametrize("split", [{}, {"minPartitions": "2"}])
def test_an_end_below_the_log_is_refused_when_it_is_planned(split: dict[str, str]) -> None:
    with serving(ScriptedLog(batches(*FIFTEEN[2:]), start=10)) as broker:
        source = reader(broker, endingOffsets='{"t":{"0":5}}', **split)
        with pytest.raises(InvalidConfig, match="start offset 10 is greater than the resolved end offset 5"):
            source.partitions()


@pytest.mark.parametrize(
    ("level", "expected"), [("read_committed", [4, 5, 6, 7]), ("read_uncommitted", [0, 1, 2, 4, 5, 6, 7])]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_b18_an_aborted_transaction_in_the_middle(level: str, expected: list[int], at_once: bool) -> None:
    log = ScriptedLog(vector("v2-txn-log.bin").data, aborted=[(4000, 0)], at_once=at_once)
    with serving(log) as broker:
        options = {"kafka.isolation.level": level}
        assert offsets(reader(broker, **options).read(task(-2, -1))) == expected
        asked = {
            r.isolation_level for key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS) for r in broker.received(key)
        }
    assert asked == {int(level == "read_committed")}


def test_c2_a_repeated_task_reads_over_new_connections() -> None:
    log = ScriptedLog(batches(*FIFTEEN))
    with serving(log) as broker:
        broker.script(ApiKey.FETCH, log.fetch, _damaged(log.fetch))
        source = reader(broker)
        with pytest.raises(CorruptMessage):
            offsets(source.read(task(0, 15)))
        until(lambda: broker.open_connections == 0)
        assert offsets(source.read(task(0, 15))) == list(range(15))
        assert broker.connection_count == 2


def test_c2_an_attempt_after_the_first_uses_no_connection_of_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(ScriptedLog(batches(*FIFTEEN))) as broker:
        source = reader(broker)
        assert offsets(source.read(task(0, 15))) == list(range(15))
        monkeypatch.setattr(batch_reader, "attempt_number", lambda: 1)
        assert offsets(source.read(task(0, 15))) == list(range(15))
        assert broker.connection_count == 2


def test_a_task_that_is_stopped_early_lets_go_of_its_connection() -> None:
    with serving(ScriptedLog(batches(*FIFTEEN))) as broker:
        rows = reader(broker).read(task(0, 15))
        assert next(rows).num_rows == 5
        assert broker.open_connections == 1
        rows.close()  # type: ignore[attr-defined]
        until(lambda: broker.open_connections == 0)


def test_a_lost_connection_costs_no_row_and_gives_none_twice() -> None:
    log = ScriptedLog(batches(*FIFTEEN))
    with serving(log) as broker:
        broker.script(ApiKey.FETCH, log.fetch, Close(), log.fetch, Close())
        assert offsets(reader(broker).read(task(0, 15))) == list(range(15))


def test_c4_many_readers_of_one_partition_see_the_same() -> None:
    with serving(ScriptedLog(batches(*FIFTEEN))) as broker, ThreadPoolExecutor(20) as threads:
        source = reader(broker)
        found = list(threads.map(lambda _: offsets(source.read(task(-2, -1))), range(60)))
    assert found == [list(range(15))] * 60


def test_c5_and_c6_readers_at_one_offset_do_not_share_a_connection() -> None:
    with serving(ScriptedLog(batches(*FIFTEEN))) as broker:
        source = reader(broker)
        first, second = source.read(task(5, 15)), source.read(task(5, 12))
        one, two = next(first), next(second)
        assert broker.open_connections == 2
        assert offsets(iter([one])) + offsets(first) == list(range(5, 15))
        assert offsets(iter([two])) + offsets(second) == list(range(5, 12))
        # The next task of this process goes on with one that nobody uses any more.
        assert offsets(source.read(task(5, 15))) == list(range(5, 15))
        assert broker.connection_count == 2


def test_c1_what_went_wrong_is_in_the_text_with_the_partition() -> None:
    log = ScriptedLog(batches(*FIFTEEN))
    with serving(log) as broker:
        broker.script(ApiKey.FETCH, _damaged(log.fetch))
        with pytest.raises(KafkaError, match=r"t-0, reading on from offset 0: .*[Cc][Rr][Cc]"):
            offsets(reader(broker).read(task(0, 15)))


def test_s33_a_time_beyond_microseconds_is_reported_with_its_record() -> None:
    nanoseconds = encode_batch(
        [NewRecord(b"x", timestamp=1), NewRecord(b"x", timestamp=1_700_000_000 * 10**9)]
    )
    with serving(ScriptedLog(nanoseconds)) as broker:
        given = parse_batch_options({"kafka.bootstrap.servers": broker.address, "subscribe": "t", **QUICK})
        with pytest.raises(
            InvalidTimestamp, match=r"KAFKA_MALFORMED_RECORD_TIMESTAMP.* partition 0, offset 1"
        ):
            list(BatchReader(given, ("value", "timestamp")).read(task(0, 2)))
        # Who does not ask for times is not kept from the rest.
        assert offsets(reader(broker).read(task(0, 2))) == [0, 1]


def test_memory_does_not_grow_with_what_an_answer_decompresses_to() -> None:
    batch_bytes, count = 4 << 20, 32
    log = b"".join(
        encode_batch([NewRecord(bytes(batch_bytes // 4))] * 4, codec=Codec.ZSTD, base_offset=4 * i)
        for i in range(count)
    )
    assert len(log) < batch_bytes
    rows, peak = 0, 0
    with serving(ScriptedLog(log, at_once=True)) as broker:
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            for batch in reader(broker).read(task(0, 4 * count)):
                rows += batch.num_rows
                peak = max(peak, pa.total_allocated_bytes() - before)
                del batch
            peak += tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert rows == 4 * count
    assert peak < 6 * batch_bytes


def _then(step: Callable[[Any], Any], after: Callable[[], None]) -> Callable[[Any], Any]:
    def both(request: Any) -> Any:
        answer = step(request)
        after()
        return answer

    return both


def _damaged(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same answer with its last byte changed."""

    def damage(request: Any) -> Any:
        answer = step(request)
        data = answer.responses[0].partitions[0].records
        return _with_part(answer, records=data[:-1] + bytes([data[-1] ^ 1]))

    return damage


def _with_part(answer: Any, **changes: Any) -> Any:
    topic = answer.responses[0]
    part = replace(topic.partitions[0], **changes)
    return replace(answer, responses=(replace(topic, partitions=(part,)),))
