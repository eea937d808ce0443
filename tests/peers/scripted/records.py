"""Scripts that append, read and delete records, and look offsets up."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from pyspark_kafkalog.protocol.api.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NewRecord
from tests.peers.scripted.session import (
    NEVER,
    Session,
    script,
)
from tests.support.protocol.raw_client import batch, fetch_request, produce_request


@script(ApiKey.PRODUCE)
def appending(session: Session) -> None:
    if session.version < 3:
        return  # Kafka 4 has them no more; `test_message_sets` and others judge them
    topic = session.topic(partitions=2)
    good, producer = batch(b"a", b"b"), 4_000_000 + session.version

    def ask(step: str, sets: dict[tuple[str, int], bytes], acks: int = -1) -> None:
        session.ask(step, produce_request(sets, acks=acks))

    ask("two records", {(topic, 0): good})
    mixed = produce_request({(topic, 1): good, (f"{topic}-never", 0): good}, acks=-1)
    bad = produce_request({(topic, 7): good}).topic_data[0].partition_data
    first, other = mixed.topic_data
    both = structs.replace(first, partition_data=(*first.partition_data, *bad))
    session.ask("one good partition of three", structs.replace(mixed, topic_data=(both, other)))
    ask("acknowledged by the leader", {(topic, 0): good}, acks=1)
    ask("acks of 2", {(topic, 0): good}, acks=2)
    ask("a wrong checksum", {(topic, 0): good[:-1] + b"x"})
    ask("cut short", {(topic, 0): good[:-3]})
    ask("nothing", {(topic, 0): b""})
    ask("two batches", {(topic, 0): good + good})
    ask("too large", {(topic, 0): batch(bytes(2 << 20))})

    bounded = session.topic("-bounded", cleanup_policy="compact", message_timestamp_after_max_ms="3600000")
    rows = [NewRecord(b"v", key, 1_700_000_000_000) for key in (b"k0", None, None, b"k3")]
    ask("two records without a key", {(bounded, 0): encode_batch(rows)})
    rows = [NewRecord(b"v", b"k", time) for time in (1_700_000_000_000, 9_000_000_000_000)]
    ask("a record of the year 2255", {(bounded, 0): encode_batch(rows)})

    def idempotent(step: str, sequence: int, epoch: int = 0) -> None:
        ask(step, {(topic, 0): batch(b"i", producer_id=producer, epoch=epoch, sequence=sequence)})

    idempotent("the first of a producer", 0)
    idempotent("the same again", 0)
    idempotent("the next", 1)
    idempotent("with a gap", 3)
    idempotent("a new epoch not from 0", 5, epoch=1)
    idempotent("a new epoch", 0, epoch=1)
    idempotent("the old epoch", 2)


@script(ApiKey.FETCH)
def fetching(session: Session) -> None:
    if session.version < 4:
        return
    topic, by_id = session.filled(), session.version >= 13

    def ask(
        step: str, offset: int, *, partition: int = 0, never: bool = False, epoch: int = -1, **fields: Any
    ) -> None:
        name = f"{topic}-never" if never else topic
        request = fetch_request({(name, partition): offset}, **fields)
        want = structs.replace(request.topics[0].partitions[0], current_leader_epoch=epoch)
        wanted = structs.replace(request.topics[0], partitions=(want,))
        if by_id:
            wanted = structs.replace(wanted, topic_id=NEVER if never else session.id_of(topic))
        session.ask(step, structs.replace(request, topics=(wanted,)))

    ask("from the start", 0)
    ask("from the middle", 3)
    ask("of committed records", 0, isolation_level=1)
    ask("at the end", 5)
    ask("beyond the end", 6)
    ask("before the start", -1)
    ask("one byte", 0, partition_max_bytes=1)
    ask("one byte in all", 0, max_bytes=1)
    ask("no such partition", 0, partition=7)
    ask("no such topic", 0, never=True)
    if session.version >= 7:
        ask("a session that is none", 0, session_id=77, session_epoch=1)
        ask("without a session", 0, session_id=-1, session_epoch=-1)
        ask("the end of a session that is none", 0, session_id=77, session_epoch=-1)
        session.ask("no topics", FetchRequest(max_wait_ms=0))
    if session.version >= 9:
        ask("an epoch to come", 0, epoch=9)
        ask("this epoch", 0, epoch=0)
        ask("an epoch before it", 0, epoch=-2)
        ask("no such partition, with an epoch to come", 0, partition=7, epoch=9)


@script(ApiKey.FETCH)
def fetching_in_a_session(session: Session) -> None:
    if session.version < 7:
        return
    topic = session.topic(partitions=3)
    by_id = session.version >= 13
    named: dict[str, Any] = {"topic_id": session.id_of(topic)} if by_id else {"topic": topic}
    number, epoch = 0, 0

    def ask(step: str, offsets: dict[int, int], *gone: int, **fields: Any) -> None:
        nonlocal number, epoch
        wants = tuple(
            FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=1 << 20)
            for n, offset in offsets.items()
        )
        given = {"session_id": number, "session_epoch": epoch, **fields}
        request = FetchRequest(
            max_wait_ms=0,
            topics=(FetchTopic(**named, partitions=wants),) if wants else (),
            forgotten_topics_data=(ForgottenTopic(**named, partitions=gone),) if gone else (),
            **given,
        )
        answer = session.ask(step, request)
        if not fields:
            number, epoch = answer.session_id, epoch + 1

    session.produce(topic, 0)
    ask("it begins", {0: 0, 1: 0})
    ask("what was not consumed", {})
    ask("consumed", {0: 1})
    ask("nothing new", {})
    session.produce(topic, 1)
    ask("new records", {})
    ask("one more partition, and one less", {2: 0}, 1)
    ask("nothing of the one that was left", {})
    ask("beyond the end", {0: 9})
    ask("still beyond it", {})
    ask("within the log again", {0: 1})
    ask("nothing new again", {})
    ask("an epoch to come", {}, session_epoch=epoch + 1)
    ask("the epoch before", {}, session_epoch=epoch - 1)
    ask("an unknown partition", {7: 0})
    ask("that is forgotten", {}, 7)
    ask("all are forgotten", {}, 0, 2)
    number, epoch = 0, 0
    ask("another begins", {0: 0})
    first = number
    ask("it ends with a fetch of no session", {0: 1}, session_epoch=-1)
    ask("it is gone", {}, session_id=first, session_epoch=1)


@script(ApiKey.LIST_OFFSETS)
def looking_up_offsets(session: Session) -> None:
    if not session.version:
        return
    topic, empty = session.filled(), session.topic("-empty")
    names = {"end": -1, "start": -2, "no time": -4 - session.version, "a time": 1_700_000_000_002, "early": 0,
             "late": 1_800_000_000_000}  # fmt: skip
    if session.version >= 7:
        names["largest time"] = -3

    def ask(
        step: str, name: str, timestamp: int, partition: int = 0, epoch: int = -1, isolation: int = 0
    ) -> None:
        want = ListOffsetsPartition(partition, epoch, timestamp)
        topics = (ListOffsetsTopic(name, (want,)),)
        session.ask(step, ListOffsetsRequest(-1, isolation, topics))

    for step, timestamp in names.items():
        if step != "no time":
            ask(step, topic, timestamp)
            ask(f"{step} of an empty log", empty, timestamp)
    ask("no such partition", topic, -1, 7)
    ask("no such topic", f"{topic}-never", -1)
    if session.version >= 2:
        ask("the committed end", topic, -1, isolation=1)
    if session.version >= 4:
        ask("an epoch to come", topic, -1, epoch=9)
        ask("no such partition, with an epoch to come", topic, -1, 7, epoch=9)
        ask("an epoch before it", topic, -1, epoch=-2)


@script(ApiKey.DELETE_RECORDS)
def deleting_records(session: Session) -> None:
    topic = session.filled()
    compacted, both = (
        session.topic("-c", cleanup_policy="compact"),
        session.topic("-b", cleanup_policy="compact,delete"),
    )

    def ask(step: str, name: str, *wanted: tuple[int, int]) -> None:
        partitions = tuple(DeleteRecordsPartition(*each) for each in wanted)
        session.ask(step, DeleteRecordsRequest((DeleteRecordsTopic(name, partitions),), 5000))

    ask("two of five", topic, (0, 2))
    ask("fewer", topic, (0, 1))
    ask("beyond the end", topic, (0, 6))
    ask("a negative offset", topic, (0, -2))
    ask("no such partition", topic, (7, 0))
    ask("no such topic", f"{topic}-never", (0, 0))
    ask("of a compacted topic", compacted, (0, 0))
    ask("of a topic that is compacted too", both, (0, 0))
    session.ask("the start", _offset_of(topic, -2), 7)
    session.ask("a time below the start", _offset_of(topic, 0), 7)
    session.ask("a fetch below the start", fetch_request({(topic, 0): 1}), 12)
    session.ask("a fetch from the start", fetch_request({(topic, 0): 2}), 12)
    ask("all", topic, (0, -1))
    session.ask("the start after all", _offset_of(topic, -2), 7)
    session.ask("of the offsets topic", _internal(), session.version)


def _internal() -> DeleteRecordsRequest:
    partitions = (DeleteRecordsPartition(0, 0),)
    return DeleteRecordsRequest((DeleteRecordsTopic("__consumer_offsets", partitions),), 5000)


def _offset_of(topic: str, timestamp: int) -> ListOffsetsRequest:
    want = ListOffsetsPartition(0, -1, timestamp)
    return ListOffsetsRequest(-1, 0, (ListOffsetsTopic(topic, (want,)),))


@script(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def ends_of_epochs(session: Session) -> None:
    topic = session.filled()
    for step, wanted in {
        "epoch 0": (0, -1, 0),
        "a later one": (0, -1, 3),
        "none": (0, -1, -1),
        "this epoch is the leader's": (0, 0, 0),
        "an epoch to come": (0, 9, 0),
        "one before all": (0, -1, -5),
        "no such partition": (7, -1, 0),
        "no such partition, with an epoch to come": (7, 9, 0),
        "a negative one that is the leader's": (0, -2, 0),
    }.items():
        partitions = (OffsetForLeaderPartition(*wanted),)
        request = OffsetForLeaderEpochRequest(-1, (OffsetForLeaderTopic(topic, partitions),))
        session.ask(step, request)


@script(ApiKey.INIT_PRODUCER_ID)
def ids_of_producers(session: Session) -> None:
    session.ask("without transactions", InitProducerIdRequest(None, 1000))
    session.ask("an empty transactional id", InitProducerIdRequest("", 1000))
    if session.version >= 3:
        session.ask("with an id and epoch", InitProducerIdRequest(None, 1000, 5, 3))
