"""Mirroring between clusters of our own brokers, on both wires."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.mirror import Mirror, NotMirrored
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.config.mirror_config import mirror_config
from pyspark_kafkalog.errors import ConnectionLost, InvalidRequest
from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import NewRecord
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import JsonLayout, V07Layout
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.classic.mirroring import BROKER, Side
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until
from tests.support.zookeeper import expire_broker, patient_session

Run = Callable[..., Mirror]
OLD, NEW = "0.7", "0.8"


@pytest.fixture(scope="module")
def chroot(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.connect}/mirrors"


@pytest.fixture(scope="module")
def source(chroot: str) -> Iterator[EmbeddedBroker]:
    with start_broker(BROKER | {"num.partitions": 2, "zookeeper.connect": f"{chroot}-source"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def target(chroot: str) -> Iterator[EmbeddedBroker]:
    with start_broker(BROKER | {"zookeeper.connect": f"{chroot}-target"}) as broker:
        yield broker


@pytest.fixture
def sides(
    source: EmbeddedBroker, target: EmbeddedBroker, chroot: str
) -> Callable[[str, str], tuple[Side, Side]]:
    return lambda one, other: (Side(source, f"{chroot}-source", one), Side(target, f"{chroot}-target", other))


@pytest.fixture
def run(topic_name: str) -> Iterator[Run]:
    """Start a mirror of the test's topic; stopped in the end."""
    made: list[Mirror] = []

    def one(*given: dict[str, object], **own: object) -> Mirror:
        properties: dict[str, object] = {
            "sources": "main", "offset.commit.interval.ms": 50,
            **{name.replace("_", "."): value for name, value in own.items()},
        }  # fmt: skip
        for several in given:
            properties |= several
        if "whitelist" not in properties and "blacklist" not in properties:
            properties["whitelist"] = f"{topic_name}.*"
        made.append(Mirror(mirror_config(properties, source="test")))
        return made[-1].start()

    yield one
    for mirror in made:
        mirror.stop()


def committed(chroot: str, protocol: str, topic: str) -> dict[str, int]:
    layout = V07Layout() if protocol == OLD else JsonLayout()
    with patient_session(f"{chroot}-source") as session:
        return registries.group_offsets(session, layout, "mirror", topic)


@pytest.mark.parametrize("to", [OLD, NEW])
@pytest.mark.parametrize("of", [OLD, NEW])
def test_what_is_at_the_source_comes_to_the_target_in_order_and_compressed_as_it_was(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str, chroot: str, of: str, to: str
) -> None:
    here, there = sides(of, to)
    began_ms = int(time.time() * 1000)
    here.write(topic_name, [b"1", b"2"], codec=Codec.GZIP)
    here.write(topic_name, [b"3"])
    here.write(topic_name, [b"4", b"5"], codec=Codec.SNAPPY)
    mirror = run(here.as_source("main"), there.as_target())
    until(lambda: len(there.values(topic_name)) == 5)
    here.write(topic_name, [b"6"])
    until(lambda: len(there.values(topic_name)) == 6)
    found = there.read(topic_name)
    assert [(codec.name, record.value) for codec, record in found] == [
        ("GZIP", b"1"), ("GZIP", b"2"), ("NONE", b"3"), ("SNAPPY", b"4"), ("SNAPPY", b"5"), ("NONE", b"6"),
    ]  # fmt: skip
    if (of, to) == (OLD, NEW):
        assert all(began_ms <= record.timestamp <= time.time() * 1000 for _, record in found)
    end = 6 if of == NEW else max(record.next_offset for _, record in here.read(topic_name))
    until(lambda: committed(chroot, of, topic_name).get("0" if of == NEW else "1-0") == end)
    (progress,) = mirror.progress()
    assert (progress.name, progress.message_count, progress.byte_count) == ("main", 6, 6)
    assert progress.partition_count == 2
    mirror.stop()
    assert len(there.values(topic_name)) == 6, "stopped in peace, nothing comes twice"


@pytest.mark.parametrize("magic", [0, 1])
def test_a_target_of_before_0_11_gets_what_its_format_has(
    run: Run,
    sides: Callable[[str, str], tuple[Side, Side]],
    topic_name: str,
    magic: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here, there = sides(NEW, NEW)
    as_sent = NewTopic(topic_name, 1, configs={"message.format.version": "producer"})
    create_topics(":".join(map(str, there.address)), [as_sent])
    here.write(topic_name, [NewRecord(b"1", b"k", 1_700_000_000_000, (("h", b"1"),))], codec=Codec.ZSTD)
    here.write(topic_name, [NewRecord(None, b"gone", 1_700_000_000_001, (("h", b"2"),))], codec=Codec.LZ4)
    run(here.as_source("main"), there.as_target(**{"message.format": f"v{magic}"}))
    until(lambda: len(there.read(topic_name)) == 2)
    times = [1_700_000_000_000, 1_700_000_000_001] if magic else [-1, -1]
    assert [(codec, r.value, r.key, r.timestamp, r.headers) for codec, r in there.read(topic_name)] == [
        (Codec.GZIP, b"1", b"k", times[0], ()), (Codec.LZ4, None, b"gone", times[1], ()),
    ]  # fmt: skip
    assert {magic_at(memoryview(data), 0) for data in there.fetched(topic_name)} == {magic}
    told = [m for m in caplog.messages if "headers are dropped" in m]
    assert told == [
        f"{topic_name}: headers are dropped from all messages: "
        f"target.message.format=v{magic} does not have them"
    ]


def test_0_7_gets_what_it_has_of_a_message(
    run: Run,
    sides: Callable[[str, str], tuple[Side, Side]],
    topic_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here, there = sides(NEW, OLD)
    here.write(topic_name, [NewRecord(b"v", b"k"), NewRecord(None, b"gone")], codec=Codec.LZ4)
    run(here.as_source("main"), there.as_target())
    until(lambda: there.values(topic_name) == [b"v", b""])
    assert {codec for codec, _ in there.read(topic_name)} == {Codec.GZIP}, "0.7 does not know lz4"
    assert f"{topic_name}: keys and headers are dropped" in caplog.text


def test_a_codec_that_the_target_is_given_goes_before(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str
) -> None:
    here, there = sides(OLD, NEW)
    here.write(topic_name, [b"1"], codec=Codec.GZIP)
    run(here.as_source("main"), there.as_target(**{"compression.type": "lz4"}))
    until(lambda: [codec for codec, _ in there.read(topic_name)] == [Codec.LZ4])


@pytest.mark.parametrize("to", [OLD, NEW])
def test_partitions_keep_their_numbers_where_that_is_asked_for(
    run: Run,
    sides: Callable[[str, str], tuple[Side, Side]],
    source: EmbeddedBroker,
    target: EmbeddedBroker,
    topic_name: str,
    to: str,
) -> None:
    here, there = sides(NEW, to)
    with RawClient(source.port) as client:
        client.create_topic(topic_name, partitions=5)
    with RawClient(target.port) as client:
        client.create_topic(topic_name, partitions=2, configs={"generation": "0.7"} if to == OLD else {})
    for partition in range(5):
        here.write(topic_name, [NewRecord(b"%d" % partition, b"the same key")], partition)
    run(here.as_source("main"), there.as_target(), partition_assignment="source", num_streams=2)
    expected = [{b"0", b"2", b"4"}, {b"1", b"3"}]
    until(lambda: [set(there.values(topic_name, partition)) for partition in range(2)] == expected)


@pytest.mark.long("brokers that die and return")
def test_two_sources_are_mirrored_at_once_and_topics_join_as_they_appear(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str
) -> None:
    old, there = sides(OLD, NEW)
    new, _ = sides(NEW, NEW)
    old.write(f"{topic_name}-old", [b"old"])
    new.write(f"{topic_name}-new", [b"new"])
    new.write(f"{topic_name}-not", [b"no"])
    new.write(f"other-{topic_name}", [b"no"])
    mirror = run(
        old.as_source("old"), new.as_source("new"), there.as_target(),
        sources="old,new", whitelist=f"{topic_name}-(?!not).*",
    )  # fmt: skip
    until(
        lambda: (there.values(f"{topic_name}-old"), there.values(f"{topic_name}-new")) == ([b"old"], [b"new"])
    )
    new.write(f"{topic_name}-later", [b"later"])
    until(lambda: there.values(f"{topic_name}-later") == [b"later"])
    assert [(one.name, one.message_count) for one in mirror.progress()] == [("old", 1), ("new", 2)]
    assert there.values(f"{topic_name}-not") == there.values(f"other-{topic_name}") == []


def test_a_blacklist_leaves_topics_out(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str
) -> None:
    here, there = sides(NEW, NEW)
    here.write(f"{topic_name}-a", [b"a"])
    here.write(f"{topic_name}-b", [b"b"])
    run(here.as_source("main"), there.as_target(), blacklist=f"(?!{topic_name}).*, {topic_name}-b")
    until(lambda: there.values(f"{topic_name}-a") == [b"a"])
    assert there.values(f"{topic_name}-b") == []


@pytest.mark.long("brokers that die and return")
@pytest.mark.parametrize("by_brokers", [False, True])
def test_two_mirrors_of_a_group_share_the_work_and_hand_over_in_peace(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str, by_brokers: bool
) -> None:
    """Without a commit in time: what is committed at the hand-over is what the target has."""
    here, there = sides(NEW if by_brokers else OLD, NEW)
    for partition in range(2):
        here.write(topic_name, [b"%d" % partition] * 500, partition)
    group = {"group.id": f"{topic_name}-mirror"}
    source = here.as_source_by_brokers("main", **group) if by_brokers else here.as_source("main")
    properties = (source, there.as_target())
    one = run(*properties, offset_commit_interval_ms=600_000)
    until(lambda: one.progress()[0].message_count == 1000)
    two = run(*properties, offset_commit_interval_ms=600_000)
    until(lambda: one.progress()[0].partition_count == two.progress()[0].partition_count == 1)
    for partition in range(2):
        here.write(topic_name, [b"more"], partition)
    until(lambda: there.values(topic_name).count(b"more") == 2)
    assert two.progress()[0].message_count == 1, "nothing of before comes again"
    one.stop()
    here.write(topic_name, [b"last"], 0)
    until(lambda: b"last" in there.values(topic_name))
    assert len(there.values(topic_name)) == 1003


@pytest.mark.long("brokers that die and return")
@pytest.mark.parametrize("by_brokers", [False, True])
def test_aborted_transactions_are_not_mirrored_unless_asked_for(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str, by_brokers: bool
) -> None:
    here, there = sides(NEW, NEW)
    as_source = here.as_source_by_brokers if by_brokers else here.as_source
    group = "group.id" if by_brokers else "groupid"
    everything, good = f"{topic_name}-all", f"{topic_name}-good"
    with here.transactions(everything), here.transactions(good) as producer:
        run(as_source("main", **{group: good}), there.as_target(), whitelist=good)
        dirty = {group: everything, "isolation.level": "read_uncommitted"}
        run(as_source("main", **dirty), there.as_target(), whitelist=everything)
        until(lambda: there.values(everything) == [b"0", b"1", b"2", b"3", b"4", b"5"])
        until(lambda: there.values(good) == [b"0", b"1", b"4"])
        producer.commit_transaction()
        until(lambda: there.values(good) == [b"0", b"1", b"4", b"5"])


def test_a_source_without_zookeeper_is_read_on_where_it_was_left(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str
) -> None:
    here, there = sides(NEW, NEW)
    records = [NewRecord(b"v", b"k", 1_700_000_000_000, (("h", b"1"), ("h", None))), NewRecord(None, b"gone")]
    here.write(topic_name, records)
    here.write(f"other-{topic_name}", [b"no"])
    source = here.as_source_by_brokers("main", **{"group.id": topic_name})
    mirror = run(source, there.as_target(), offset_commit_interval_ms=600_000, num_streams=2)
    until(lambda: len(there.read(topic_name)) == 2)
    (progress,) = mirror.progress()
    assert (progress.message_count, progress.byte_count) == (2, 6)
    here.write(f"{topic_name}-later", [b"later"])
    until(lambda: there.values(f"{topic_name}-later") == [b"later"])
    mirror.stop()
    here.write(topic_name, [b"more"])
    run(source, there.as_target())
    until(lambda: len(there.read(topic_name)) == 3)
    found = [NewRecord(r.value, r.key, r.timestamp, r.headers) for _, r in there.read(topic_name)]
    assert found[0] == records[0]
    assert [(one.value, one.key) for one in found] == [(b"v", b"k"), (None, b"gone"), (b"more", None)]
    assert there.values(f"other-{topic_name}") == []


@pytest.mark.parametrize("to", [OLD, NEW])
def test_the_lag_goes_down_to_nothing(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str, to: str
) -> None:
    here, there = sides(to, NEW)
    here.write(topic_name, [b"1", b"2"])
    mirror = run(here.as_source("main"), there.as_target())
    until(lambda: there.values(topic_name) == [b"1", b"2"])
    (source,) = mirror._sources

    def measured() -> int | None:
        source.measure_lag()
        return source.lag

    until(lambda: measured() == 0)


@pytest.mark.long("brokers that die and return")
@pytest.mark.parametrize("to", [OLD, NEW])
def test_a_target_that_goes_away_and_returns_is_waited_for(
    run: Run,
    sides: Callable[[str, str], tuple[Side, Side]],
    target: EmbeddedBroker,
    topic_name: str,
    chroot: str,
    to: str,
) -> None:
    here, there = sides(NEW, to)
    here.write(topic_name, [b"1"])
    mirror = run(here.as_source("main"), there.as_target())
    until(lambda: committed(chroot, NEW, topic_name).get("0") == 1)
    target.kill()
    try:
        for number in range(2, 5):
            here.write(topic_name, [b"%d" % number])
        until(lambda: mirror.progress()[0].message_count == 4)
        assert not mirror.wait(0), "it is still there"
        assert committed(chroot, NEW, topic_name)["0"] == 1, "nothing is committed that the target has not"
    finally:
        expire_broker(f"{chroot}-target", 1)
        target.start()
    expected = [b"1", b"2", b"3", b"4"]
    until(lambda: list(dict.fromkeys(there.values(topic_name))) == expected)
    mirror.stop()
    assert mirror.lost_count == 0


@pytest.mark.parametrize("to", [OLD, NEW])
@pytest.mark.parametrize("abort", [True, False])
def test_what_the_target_does_not_take_stops_the_mirror_or_is_lost(
    run: Run,
    sides: Callable[[str, str], tuple[Side, Side]],
    topic_name: str,
    chroot: str,
    to: str,
    abort: bool,
) -> None:
    here, there = sides(NEW, to)
    here.write(topic_name, [b"1"])
    limit = {"max.message.size": 2000} if to == OLD else {"max.request.size": 2000}
    mirror = run(here.as_source("main"), there.as_target(**limit), abort_on_send_failure=abort)
    until(lambda: committed(chroot, NEW, topic_name).get("0") == 1)
    here.write(topic_name, [b"2", b"x" * 5000, b"3"])
    if abort:
        assert mirror.wait(60)
        with pytest.raises(
            NotMirrored,
            match=r"\d message\(s\) were not delivered.*nothing more is committed.*(5000|about 50)",
        ):
            mirror.stop()
        assert committed(chroot, NEW, topic_name)["0"] == 1
        assert b"3" not in there.values(topic_name)
    else:
        until(lambda: there.values(topic_name) == [b"1", b"2", b"3"])
        until(lambda: committed(chroot, NEW, topic_name)["0"] == 4)
        assert mirror.lost_count == 1


class Unwilling:
    """A partitioner that fails."""

    def partition(self, key: object, partition_count: int) -> int:
        raise ValueError(f"{key!r} of {partition_count}")


def test_a_partitioner_that_fails_stops_the_mirror(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str, chroot: str
) -> None:
    here, there = sides(NEW, OLD)
    here.write(topic_name, [NewRecord(b"1", b"key")])
    unwilling = {"partitioner.class": f"{__name__}.Unwilling"}
    mirror = run(here.as_source("main"), there.as_target(**unwilling))
    assert mirror.wait(60)
    with pytest.raises(NotMirrored, match="sending to the target failed: ValueError"):
        mirror.stop()
    assert committed(chroot, NEW, topic_name).get("0", 0) == 0


def test_a_source_that_cannot_be_read_on_ends_it_with_the_reason_and_a_commit_of_the_rest(
    run: Run, sides: Callable[[str, str], tuple[Side, Side]], topic_name: str, chroot: str
) -> None:
    here, there = sides(NEW, NEW)
    here.write(f"{topic_name}-a", [b"1", b"2"])
    here.write(f"{topic_name}-b", [b"1"])
    with patient_session(f"{chroot}-source") as session:
        for number in range(2):
            registries.write_group_offset(session, JsonLayout(), "mirror", f"{topic_name}-a", str(number), 0)
    mirror = run(here.as_source("main", **{"autooffset.reset": "none"}), there.as_target())
    assert mirror.wait(60)
    with pytest.raises(InvalidRequest, match=f"group mirror has no offset for {topic_name}-b/[01]"):
        mirror.stop()
    done = there.values(f"{topic_name}-a")
    assert committed(chroot, NEW, f"{topic_name}-a")["0"] == len(done)


def test_sources_that_cannot_be_reached_end_it_at_once(
    sides: Callable[[str, str], tuple[Side, Side]], topic_name: str
) -> None:
    here, there = sides(OLD, OLD)
    away = {
        "source.away.zookeeper.connect": "127.0.0.1:1", "source.away.groupid": "mirror",
        "source.away.zookeeper.connection.timeout.ms": 300,
        "sources": "main,away", "whitelist": topic_name,
    }  # fmt: skip
    before = threading.active_count()
    mirror = Mirror(mirror_config(here.as_source("main") | there.as_target() | away, source="test"))
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        mirror.start()
    until(lambda: threading.active_count() <= before)
