"""Which offsets a load reads, first and later, and what is refused rather than lost."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.cli.app import app
from pyspark_kafkalog.client.admin import create_partitions
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets
from pyspark_kafkalog.datasource.batch.load_planning import PendingPlan, begin, commit_to_group, propose
from pyspark_kafkalog.datasource.batch.load_reader import LoadReader
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import KafkaCluster
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss
from pyspark_kafkalog.errors import (
    ErrorCode,
    ForeignCluster,
    InvalidConfig,
    LoadError,
    OffsetsAgedOut,
    TopicRecreated,
)
from pyspark_kafkalog.ledger.history import parse_as_of, ranges_of
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.protocol.api.metadata import Coordinator, FindCoordinatorResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.datasource.spark_topics import Topic
from tests.support.protocol.raw_client import RawClient

QUICK = {"fetchOffset.retryIntervalMs": "1", "fetchOffset.numRetries": "0", "kafka.retry.backoff.ms": "1"}


class Loads:
    """Loads of one name from one cluster, as a driver plans them. *Not thread-safe.*"""

    def __init__(self, servers: str, directory: Path, **always: str) -> None:
        self.ledger = Ledger.at(directory, "load")
        where = {"loadName": "load", "offsetsPath": str(directory)}
        self._always = {"kafka.bootstrap.servers": servers, **where, **QUICK, **always}

    def options(self, **given: str) -> BatchOptions:
        return parse_batch_options({**self._always, **given})

    def begin(self, **given: str) -> Plan | None:
        return self._asking(lambda o, lookup: begin(o, lookup, self.ledger, run="run"), **given)

    def propose(self, **given: str) -> Plan | None:
        return self._asking(lambda o, lookup: propose(o, lookup, self.ledger), **given)

    def commit(self, plan: Plan | None) -> Any:
        assert plan is not None
        return self.ledger.commit(plan, mode="job", run="run", receipts=False)

    def load(self, **given: str) -> list[tuple[str, int, int]]:
        """Plan and commit; what was planned."""
        plan = self.begin(**given)
        if plan is not None:
            self.commit(plan)
        return ranges(plan)

    def _asking(self, ask: Callable[[BatchOptions, KafkaCluster], Plan | None], **given: str) -> Plan | None:
        options = self.options(**given)
        lookup = KafkaCluster(options, options.consumer)
        try:
            return ask(options, lookup)
        finally:
            lookup.close()


def ranges(plan: Plan | None) -> list[tuple[str, int, int]]:
    return [] if plan is None else [(f"{r.topic}-{r.partition}", r.start, r.end) for r in plan.ranges]


def reasons(plan: Plan | None) -> dict[str, str]:
    return {} if plan is None else {str(p.key): p.reason for p in plan.partitions}


def tree(directory: Path) -> dict[str, bytes | None]:
    """Every file and directory, with what is in it."""
    return {
        str(p.relative_to(directory)): p.read_bytes() if p.is_file() else None for p in directory.rglob("*")
    }


@pytest.fixture
def log() -> ScriptedLog:
    """Offsets 3 to 29."""
    return ScriptedLog(batches(range(3, 10), range(10, 20), range(20, 30)), start=3)


@pytest.fixture
def broker(log: ScriptedLog) -> Iterator[ScriptedBroker]:
    with serving(log) as scripted:
        yield scripted


@pytest.fixture
def loads(broker: ScriptedBroker, tmp_path: Path) -> Loads:
    return Loads(broker.address, tmp_path / "offsets", subscribe="t")


@pytest.fixture
def real(
    running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path
) -> tuple[Loads, Topic]:
    """A topic of two partitions on a broker: 0 has five records, 1 has three."""
    rows = Topic(client, topic)
    rows.add(*range(5), partition=0)
    rows.add(*range(3), partition=1)
    return Loads(running_broker.bootstrap_servers, tmp_path / "offsets", subscribe=topic), rows


def test_each_load_begins_where_the_last_commit_ended(loads: Loads, log: ScriptedLog) -> None:
    assert loads.load(endingOffsets='{"t":{"0":12}}') == [("t-0", 3, 12)]
    assert loads.load(startingOffsets='{"t":{"0":5}}') == [("t-0", 12, 30)]
    assert loads.load() == []
    assert loads.ledger.pending() is None
    assert [c.number for c in loads.ledger.history()] == [1, 2]
    log.append(batches(range(30, 33)))
    assert loads.load() == [("t-0", 30, 33)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"t":{"0":7}}'}, [("t-0", 7, 30)]),
        ({"maxRecordsPerPartition": "10"}, [("t-0", 3, 12), ("t-0", 12, 21), ("t-0", 21, 30)]),
        ({"minPartitions": "2"}, [("t-0", 3, 16), ("t-0", 16, 30)]),
        ({"startingOffsets": '{"t":{"0":30}}'}, []),
    ],
)
def test_the_first_load_begins_where_the_options_say(
    loads: Loads, options: dict[str, str], expected: list[tuple[str, int, int]]
) -> None:
    assert ranges(loads.begin(**options)) == expected


@pytest.mark.parametrize("start", ["now", "group"])
def test_a_first_load_that_finds_nothing_is_where_the_next_one_begins(
    real: tuple[Loads, Topic], cluster: Cluster, tmp_path: Path, start: str
) -> None:
    """Each load says where it would begin now; partition 2 comes later and is read whole."""
    loads, rows = real
    group = f"group-of-{rows.name}"
    zero, two = f"{rows.name}-0", f"{rows.name}-2"

    def load(*ends: int) -> list[tuple[str, int, int]]:
        if start == "now":
            return loads.load(startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest")
        commit_offsets(cluster, group, {TopicPartition(rows.name, p): end for p, end in enumerate(ends)})
        return loads.load(startingOffsets="group", **{"kafka.group.id": group})

    assert load(5, 3) == []
    kept = tree(tmp_path)
    assert load(5, 3) == []
    assert tree(tmp_path) == kept
    assert loads.ledger.head_and_pending() == (None, None)
    with pytest.raises(LoadError, match="has no commit from 2100"):
        ranges_of(loads.ledger, parse_as_of("2100-01-01"))
    rows.add(*range(4))
    create_partitions(cluster, {rows.name: 3})
    rows.add(*range(2), partition=2)
    assert ranges(loads.propose()) == [(zero, 5, 9), (two, 0, 2)]
    assert load(9, 3, 2) == [(zero, 5, 9), (two, 0, 2)]
    rows.add(*range(4))
    assert load(13, 3, 2) == [(zero, 9, 13)]
    loads.ledger.rewind(0, "rewind")
    assert load(13, 3, 2) == [(zero, 5, 13), (two, 0, 2)]
    assert loads.ledger.verify() == []


def test_a_plan_given_up_before_the_first_commit_leaves_the_start_that_was_kept(
    loads: Loads, log: ScriptedLog
) -> None:
    assert loads.load(startingOffsets='{"t":{"0":30}}') == []
    log.append(batches(range(30, 40)))
    assert ranges(loads.begin()) == [("t-0", 30, 40)]
    assert ranges(loads.begin(onPendingPlan="discard")) == [("t-0", 30, 40)]
    loads.ledger.rewind(0, "rewind")
    assert loads.load(startingOffsets="earliest") == [("t-0", 30, 40)]


def test_topics_that_come_after_a_first_load_found_none_are_read_whole(
    running_broker: EmbeddedBroker, client: RawClient, topic_name: str, tmp_path: Path
) -> None:
    loads = Loads(running_broker.bootstrap_servers, tmp_path / "offsets", subscribePattern=topic_name)
    now = {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}
    assert loads.load(**now) == []
    client.create_topic(topic_name)
    Topic(client, topic_name).add(*range(4))
    assert loads.load(**now) == [(f"{topic_name}-0", 0, 4)]


def test_limited_loads_read_everything_one_after_the_other(real: tuple[Loads, Topic]) -> None:
    """Partition 0 has five offsets, 1 has three: of five the shares are 3 and 2, and none loads more."""
    loads, rows = real
    zero, one = f"{rows.name}-0", f"{rows.name}-1"
    assert loads.load(maxRecordsPerLoad="5") == [(zero, 0, 3), (one, 0, 2)]
    assert loads.load(maxRecordsPerLoad="1") == [(zero, 3, 4)]
    assert loads.load(maxRecordsPerLoad="5", endingOffsets=rows.offsets(p0=4, p1=-1)) == [(one, 2, 3)]
    rows.add(*(b"x" * 1000 for _ in range(50)), partition=0)
    rows.add(*(b"x" * 1000 for _ in range(50)), partition=1)
    (_, start, end), (_, other, other_end) = loads.load(maxBytesPerLoad="20000")
    assert (start, other) == (4, 3)
    assert 15 <= end - start + other_end - other <= 24
    assert [last - first for _, first, last in loads.load(maxBytesPerLoad="1")] == [1]
    while loads.load(maxBytesPerLoad="70000", maxRecordsPerLoad="90"):
        pass
    assert {p.key.partition: p.next for p in loads.ledger.head().positions} == {0: 55, 1: 53}
    assert loads.ledger.verify() == []


def test_a_rewind_to_a_time_or_to_offsets_is_where_the_next_load_begins(
    real: tuple[Loads, Topic], tmp_path: Path
) -> None:
    """Kafka's rule: the first record that is not older. Where none is so late, the position stays."""
    loads, rows = real
    late = 5000
    rows.add(5, partition=0, timestamp=late)
    rows.add(6, partition=0, timestamp=late + 1000)
    zero, one = f"{rows.name}-0", f"{rows.name}-1"
    assert loads.load() == [(zero, 0, 7), (one, 0, 3)]
    name = ["rewind", "load", "--offsets", str(tmp_path / "offsets"), "--yes"]
    servers = ["-b", loads.options().consumer.bootstrap_servers]

    ran = CliRunner().invoke(app, [*name, "--to-datetime", "1970-01-01T00:00:05.001Z", *servers])
    assert ran.exit_code == 0, ran.output
    assert f"  {zero}\t[6, 7)\t1 offset\n" in ran.stdout
    assert loads.load() == [(zero, 6, 7)]

    file = tmp_path / "before.csv"
    file.write_text(f"{rows.name},1,2\n")
    ran = CliRunner().invoke(app, [*name, "--to-offsets", str(file)])
    assert ran.exit_code == 0, ran.output
    assert loads.load() == [(one, 2, 3)]
    assert [c.note for c in loads.ledger.history() if c.note] == [
        "to 1970-01-01T00:00:05.001Z", "to the offsets in before.csv"
    ]  # fmt: skip
    assert loads.ledger.verify() == []

    pending = loads.begin(startingOffsets="earliest")
    assert pending is None
    rows.add(7, partition=1)
    pending = loads.begin()
    for same in (
        ["--to-datetime", "1980-01-01T00:00:00Z", *servers], ["--to-offsets", str(file)],
    ):  # fmt: skip
        file.write_text(f"{rows.name},1,3\n")
        ran = CliRunner().invoke(app, [*name, *same])
        assert (ran.exit_code, ran.stdout.splitlines()[-1]) == (
            0,
            "positions unchanged: nothing was committed",
        )
    stays = f"{zero} stays where it is: it has no record at or after 1980-01-01T00:00:00Z"
    assert stays in CliRunner().invoke(app, [*name, "--to-datetime", "1980-01-01T00:00:00Z", *servers]).stderr
    assert loads.ledger.pending() == pending, "an unchanged position gives up no plan"
    loads.load()

    file.write_text(f"{rows.name},1,2\n{rows.name},1,1\n")
    for wrong in (
        ["--to-offsets", str(file)],
        ["--to-datetime", "soon"],
        ["--to", "start", "--to-datetime", "x"],
    ):
        ran = CliRunner().invoke(app, [*name, *wrong])
        assert ran.exit_code != 0
    assert loads.begin() is None


def test_a_pending_plan_is_replayed_with_its_own_ranges_although_the_log_grew(
    loads: Loads, log: ScriptedLog
) -> None:
    first = loads.begin()
    log.append(batches(range(30, 40)))
    again = loads.begin(maxRecordsPerPartition="5")
    assert again == first
    loads.commit(again)
    assert loads.load() == [("t-0", 30, 40)]


def test_a_pending_plan_may_stop_the_load_or_be_given_up(loads: Loads, log: ScriptedLog) -> None:
    loads.load(endingOffsets='{"t":{"0":10}}')
    pending = loads.begin()
    log.append(batches(range(30, 40)))
    with pytest.raises(
        PendingPlan, match=r"plan 2 of .*load, made .*Z, was not committed.*onPendingPlan=replay"
    ):
        loads.begin(onPendingPlan="fail")
    assert loads.ledger.pending() == pending
    assert ranges(loads.begin(onPendingPlan="discard")) == [("t-0", 10, 40)]
    assert [c.mode for c in loads.ledger.history()] == ["job", "discard"]


def test_a_discarded_first_plan_leaves_the_first_load_to_be_made(loads: Loads) -> None:
    loads.begin(endingOffsets='{"t":{"0":10}}')
    plan = loads.begin(onPendingPlan="discard", startingOffsets='{"t":{"0":5}}')
    assert ranges(plan) == [("t-0", 5, 30)]


def test_a_proposal_is_the_plan_and_nothing_is_written(
    loads: Loads, log: ScriptedLog, tmp_path: Path
) -> None:
    assert ranges(loads.propose()) == [("t-0", 3, 30)]
    assert tree(tmp_path) == {}
    loads.load(endingOffsets='{"t":{"0":10}}')
    before = tree(tmp_path)
    assert ranges(loads.propose()) == [("t-0", 10, 30)]
    assert tree(tmp_path) == before
    pending = loads.begin(endingOffsets='{"t":{"0":20}}')
    before = tree(tmp_path)
    assert loads.propose() == pending
    assert ranges(loads.propose(onPendingPlan="discard")) == [("t-0", 10, 30)]
    with pytest.raises(PendingPlan):
        loads.propose(onPendingPlan="fail")
    assert tree(tmp_path) == before


def test_an_end_after_the_log_is_reported_or_cut(loads: Loads) -> None:
    beyond = {"endingOffsets": '{"t":{"0":45}}'}
    with pytest.raises(DataLoss, match=r"offsets \[30, 45\) of t-0: the log holds \[3, 30\)"):
        loads.begin(**beyond)
    assert ranges(loads.begin(failOnDataLoss="false", **beyond)) == [("t-0", 3, 30)]


def test_a_first_start_before_the_log_is_reported_or_cut(loads: Loads) -> None:
    before = {"startingOffsets": '{"t":{"0":1}}'}
    with pytest.raises(DataLoss, match=r"offsets \[1, 3\) of t-0: the log holds \[3, 30\)"):
        loads.begin(**before)
    assert ranges(loads.begin(failOnDataLoss="false", **before)) == [("t-0", 3, 30)]


def test_a_first_start_after_its_end_is_an_error(loads: Loads) -> None:
    with pytest.raises(InvalidConfig, match="start offset 45 is greater than the resolved end offset 30"):
        loads.begin(startingOffsets='{"t":{"0":45}}')


def test_offsets_that_aged_out_are_counted(loads: Loads, log: ScriptedLog) -> None:
    loads.load(endingOffsets='{"t":{"0":5}}')
    log.keep(start=20)
    with pytest.raises(OffsetsAgedOut, match="15 offsets"):
        loads.begin()
    plan = loads.begin(failOnDataLoss="false")
    assert (ranges(plan), reasons(plan)) == ([("t-0", 20, 30)], {"t-0": "15 offsets aged out"})


def test_a_pending_plan_whose_offsets_aged_out_says_what_to_do(loads: Loads, log: ScriptedLog) -> None:
    planned = loads.begin()
    log.keep(start=20)
    with pytest.raises(
        OffsetsAgedOut, match=r"t-0: 17 offsets from 3 on aged out.*onPendingPlan=discard makes"
    ):
        loads.begin()
    assert loads.begin(failOnDataLoss="false") == planned
    assert ranges(loads.begin(onPendingPlan="discard")) == [("t-0", 20, 30)]


def test_a_log_that_was_cut_below_a_pending_plan_says_what_to_do(loads: Loads, log: ScriptedLog) -> None:
    loads.begin()
    log.keep(end=20)
    with pytest.raises(TopicRecreated, match=r"offsets \[3, 30\).*holds \[3, 20\).*onPendingPlan=discard"):
        loads.begin()


def test_a_topic_that_is_gone_under_a_pending_plan_says_what_to_do(
    loads: Loads, broker: ScriptedBroker
) -> None:
    loads.begin()
    broker.layout.leaders = {"u": {0: 0}}
    with pytest.raises(
        TopicRecreated, match=r"no such topic; plan 1 of .* can no longer be read.*onPendingPlan=discard"
    ):
        loads.begin()


def with_topic_id(broker: ScriptedBroker, topic_id: uuid.UUID) -> None:
    def described(request: Any) -> Any:
        answer = broker.layout.metadata(request)
        return replace(answer, topics=tuple(replace(t, topic_id=topic_id) for t in answer.topics))

    broker.default(ApiKey.METADATA, described)


def test_a_recreated_topic_is_not_read_on_in_silence(
    loads: Loads, broker: ScriptedBroker, log: ScriptedLog
) -> None:
    with_topic_id(broker, uuid.UUID(int=1))
    loads.load(endingOffsets='{"t":{"0":10}}')
    with_topic_id(broker, uuid.UUID(int=2))
    with pytest.raises(TopicRecreated, match="onTopicRecreated=earliest"):
        loads.begin()
    assert loads.begin(onTopicRecreated="skip") is None
    assert ranges(loads.begin(onTopicRecreated="earliest")) == [("t-0", 3, 30)]
    with_topic_id(broker, uuid.UUID(int=3))
    with pytest.raises(
        TopicRecreated, match="t-0 was deleted and created again, or truncated, after it was planned"
    ):
        loads.begin(onTopicRecreated="earliest")


def test_a_change_of_the_isolation_level_loses_nothing_and_is_not_a_new_topic(
    loads: Loads, log: ScriptedLog
) -> None:
    """An open transaction begins at offset 12: under read_committed the log ends there."""
    log.last_stable = 12
    committed = {"kafka.isolation.level": "read_committed"}
    pending = loads.begin(**committed)
    assert ranges(pending) == [("t-0", 3, 12)]
    with pytest.raises(
        InvalidConfig, match=r"plan 1 of .*load, which is pending, was made with read_committed"
    ):
        loads.begin()
    loads.commit(pending)
    assert loads.load() == [("t-0", 12, 30)]
    assert loads.load(**committed) == []
    log.last_stable = None
    log.append(batches(range(30, 35)))
    assert loads.load(**committed) == [("t-0", 30, 35)]


def test_the_ledger_of_another_cluster_is_refused(loads: Loads, broker: ScriptedBroker) -> None:
    loads.load(endingOffsets='{"t":{"0":10}}')
    broker.default(
        ApiKey.METADATA, lambda request: replace(broker.layout.metadata(request), cluster_id="another")
    )
    for ask in (loads.begin, loads.propose):
        with pytest.raises(ForeignCluster, match="another"):
            ask()


def test_a_partition_that_came_later_is_read_whole(
    real: tuple[Loads, Topic], running_broker: EmbeddedBroker
) -> None:
    loads, rows = real
    loads.load(startingOffsets=rows.offsets(p0=4, p1=2))
    create_partitions(running_broker.bootstrap_servers, {rows.name: 3})
    rows.add(*range(4), partition=2)
    # What said where the first load begins does not fit the partitions any more, and no longer matters.
    plan = loads.begin(startingOffsets=rows.offsets(p0=4, p1=2))
    assert ranges(plan) == [(f"{rows.name}-2", 0, 4)]
    assert reasons(plan)[f"{rows.name}-2"] == "new partition"


def test_a_partition_that_is_left_out_for_once_continues_where_it_was(
    running_broker: EmbeddedBroker, client: RawClient, real: tuple[Loads, Topic], tmp_path: Path
) -> None:
    _, rows = real
    loads = Loads(running_broker.bootstrap_servers, tmp_path / "assigned")
    assert len(loads.load(assign=f'{{"{rows.name}":[0,1]}}')) == 2
    rows.add(*range(2), partition=0)
    rows.add(*range(2), partition=1)
    assert loads.load(assign=f'{{"{rows.name}":[1]}}') == [(f"{rows.name}-1", 3, 5)]
    assert loads.load(subscribe=rows.name) == [(f"{rows.name}-0", 5, 7)]


def test_the_group_gets_the_next_offsets_and_a_read_may_begin_there(
    real: tuple[Loads, Topic], running_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    loads, rows = real
    group = f"group-of-{rows.name}"
    first, second = TopicPartition(rows.name, 0), TopicPartition(rows.name, 1)
    options = loads.options(**{"kafka.group.id": group, "commitOffsets": "group"})
    assert options.load is not None
    source = LoadReader(options, ("offset",), options.load)
    lookup = KafkaCluster(options, options.consumer)
    try:
        assert sum(batch.num_rows for task in source.partitions() for batch in source.read(task)) == 8
        assert {p: c.offset for p, c in committed_offsets(lookup.client, group).items()} == {
            first: 5,
            second: 3,
        }
        commit_offsets(lookup.client, group, {first: 4})
    finally:
        lookup.close()
    other = Loads(running_broker.bootstrap_servers, tmp_path / "other", subscribe=rows.name)
    at_group = {"startingOffsets": "group", "kafka.group.id": group}
    assert ranges(other.begin(**at_group)) == [(f"{rows.name}-0", 4, 5)]


def test_a_group_commit_that_fails_is_a_warning(
    loads: Loads, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    commit = loads.commit(loads.begin())
    nobody = Coordinator(
        key="g", node_id=-1, host="", port=-1, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    broker.default(ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(coordinators=(nobody,)))
    commit_to_group(loads.options(**{"kafka.group.id": "g"}), commit)
    assert "load 1 is committed, but its offsets not to group g" in caplog.text


def test_a_read_may_begin_where_the_text_files_of_a_ledger_say(
    real: tuple[Loads, Topic], running_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    loads, rows = real
    loads.load(endingOffsets=rows.offsets(p0=4, p1=1))
    mirror = f"file:{loads.ledger.location}/offsets"
    other = Loads(running_broker.bootstrap_servers, tmp_path / "other", subscribe=rows.name)
    expected = [(f"{rows.name}-0", 4, 5), (f"{rows.name}-1", 1, 3)]
    assert ranges(other.begin(startingOffsets=mirror)) == expected


def test_a_thousand_partitions_are_planned_with_a_handful_of_questions(
    broker: ScriptedBroker, loads: Loads, log: ScriptedLog
) -> None:
    broker.layout.leaders["t"] = dict.fromkeys(range(1000), 0)
    plan = loads.begin(maxRecordsPerPartition="10")
    loads.commit(plan)
    log.append(batches(range(30, 33)))
    later = loads.begin()
    assert (len(ranges(plan)), len(ranges(later))) == (3000, 1000)
    # The ends of the logs, and what the partitions are: a handful of questions however many there are.
    assert len(broker.received(ApiKey.LIST_OFFSETS)) == 6
    assert len(broker.requests) < 30
