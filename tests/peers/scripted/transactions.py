"""Scripts of transactions."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from pyspark_kafkalog.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.api.producers import (
    DescribeProducersRequest,
    InitProducerIdRequest,
    TopicRequest,
)
from pyspark_kafkalog.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.peers.scripted.session import Session, script
from tests.support.protocol.raw_client import batch, fetch_request, produce_request

CONCURRENT = 51


class Producer:
    """Requests of one transactional id, in versions that go with a version of EndTxn."""

    def __init__(self, session: Session, name: str) -> None:
        self.session, self.name = session, name
        self.id, self.epoch = -1, -1
        self.version = session.version
        self.add_version = min(session.version, 3)

    def begin(self, step: str, *, timeout_ms: int = 60_000, known: bool = False) -> None:
        """Ask for the id and epoch; again while the transaction before is being ended."""
        more = {"producer_id": self.id, "producer_epoch": self.epoch} if known else {}
        request = InitProducerIdRequest(self.name, timeout_ms, **more)
        answer = self.session.ask(step, request, 4, until_not=CONCURRENT)
        if not answer.error_code:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, step: str, *partitions: tuple[str, int], **other: Any) -> None:
        topics: dict[str, tuple[int, ...]] = {}
        for topic, number in partitions:
            topics[topic] = (*topics.get(topic, ()), number)
        request = AddPartitionsToTxnRequest(
            (), *self._who(other), tuple(AddPartitionsToTxnTopic(*each) for each in topics.items())
        )
        self.session.ask(step, request, self.add_version, until_not=CONCURRENT)

    def add_offsets(self, step: str, group: str, **other: Any) -> None:
        request = AddOffsetsToTxnRequest(*self._who(other), group)
        self.session.ask(step, request, self.version, until_not=CONCURRENT)

    def commit_offsets(self, step: str, group: str, topic: str, offset: int, **other: Any) -> None:
        partitions = (TxnOffsetCommitRequestPartition(0, offset),)
        name, number, epoch = self._who(other)
        request = TxnOffsetCommitRequest(
            name, group, number, epoch, topics=(TxnOffsetCommitRequestTopic(topic, partitions),)
        )
        self.session.ask(step, request, self.add_version)

    def write(
        self, step: str, topic: str, sequence: int, *, epoch: int | None = None, name: str | None = ""
    ) -> None:
        epoch = self.epoch if epoch is None else epoch
        data = batch(b"t", producer_id=self.id, epoch=epoch, sequence=sequence, transactional=True)
        request = produce_request({(topic, 0): data}, acks=-1)
        wanted = self.name if name == "" else name
        self.session.ask(step, structs.replace(request, transactional_id=wanted), 11)

    def end(self, step: str, *, commit: bool, **other: Any) -> None:
        request = EndTxnRequest(*self._who(other), commit)
        self.session.ask(step, request, self.version, until_not=CONCURRENT)

    def describe(self, step: str) -> None:
        self.session.ask(step, DescribeTransactionsRequest((self.name,)), 0)

    def _who(self, other: dict[str, Any]) -> tuple[str, int, int]:
        return other.get("name", self.name), other.get("id", self.id), other.get("epoch", self.epoch)


def seen(session: Session, step: str, topic: str) -> None:
    """What readers of all and of committed records find."""
    for isolation, who in enumerate(("all", "committed")):
        session.ask(f"{step}, read by {who}", fetch_request({(topic, 0): 0}, isolation_level=isolation), 12)
        topics = (ListOffsetsTopic(topic, (ListOffsetsPartition(0, -1, -1),)),)
        session.ask(f"{step}, the end of {who}", ListOffsetsRequest(-1, isolation, topics), 7)


@script(ApiKey.END_TXN)
def a_transactional_producer(session: Session) -> None:
    topic, other = session.topic(), session.topic("-other")
    never = f"{topic}-never"
    mine = Producer(session, session.name)
    mine.describe("described before it is there")
    mine.end("end before it is there", commit=True, id=77, epoch=0)
    mine.add("add before it is there", (topic, 0), id=77, epoch=0)
    mine.begin("begin with a timeout of 0", timeout_ms=0)
    mine.begin("begin with a long timeout", timeout_ms=3_600_000)
    mine.begin("begin")
    mine.describe("described when it is empty")
    mine.end("commit nothing", commit=True)
    mine.end("abort nothing", commit=False)
    mine.write("write without adding", topic, 0)
    mine.add("add none that is there and one", (topic, 0), (never, 0), (topic, 7))
    mine.add("add", (topic, 0))
    mine.add("add again", (topic, 0))
    mine.add("add as another producer", (topic, 0), id=mine.id + 1000)
    mine.add("add in another epoch", (topic, 0), epoch=mine.epoch + 1)
    mine.write("write", topic, 0)
    mine.write("write again", topic, 0)
    mine.write("write to another topic", other, 0)
    mine.write("write without the name", topic, 1, name=None)
    seen(session, "while it is open", topic)
    session.ask("producers while it is open", _producers(topic), 0)
    mine.end("end as another producer", commit=True, id=mine.id + 1000)
    mine.end("end in another epoch", commit=True, epoch=mine.epoch + 1)
    mine.end("commit", commit=True)
    mine.end("commit again", commit=True)
    mine.end("abort what is committed", commit=False)
    seen(session, "when it is committed", topic)
    mine.describe("described when it is committed")
    mine.add("add for a second", (topic, 0))
    mine.write("write in the second", topic, 1)
    mine.end("abort", commit=False)
    mine.end("abort again", commit=False)
    mine.end("commit what is aborted", commit=True)
    seen(session, "when it is aborted", topic)
    mine.describe("described when it is aborted")
    session.ask("producers when it is aborted", _producers(topic), 0)
    mine.begin("begin anew")
    mine.write("write as the old epoch", topic, 2, epoch=mine.epoch - 1)
    mine.add("add for a third", (topic, 0))
    mine.write("write in the third", topic, 0)
    old = mine.epoch
    mine.begin("begin while it is open")
    mine.end("commit as the one before", commit=True, epoch=old)
    mine.add("add as the one before", (topic, 0), epoch=old)
    seen(session, "when it was taken over", topic)


@script(ApiKey.TXN_OFFSET_COMMIT)
def offsets_in_a_transaction(session: Session) -> None:
    topic, group = session.topic(), f"{session.name}-group"
    mine = Producer(session, session.name)
    mine.begin("begin")
    mine.commit_offsets("commit offsets without adding", group, topic, 1)
    mine.add_offsets("add a group without a name", "")
    mine.add_offsets("add the group", group)
    mine.commit_offsets("commit offsets", group, topic, 3)
    mine.commit_offsets("commit offsets of a group without a name", "", topic, 3)
    mine.commit_offsets("commit offsets of no topic", group, f"{topic}-never", 3)
    session.ask("stored while it is open", _stored(group, topic), 7)
    session.ask("stored, and nothing open", _stored(group, topic, stable=True), 7)
    mine.end("commit", commit=True)
    session.ask("stored when it is committed", _stored(group, topic, stable=True), 7, until_not=88)
    mine.add_offsets("add the group again", group)
    mine.commit_offsets("commit other offsets", group, topic, 9)
    mine.end("abort", commit=False)
    session.ask("stored when it is aborted", _stored(group, topic, stable=True), 7, until_not=88)


def _stored(group: str, topic: str, *, stable: bool = False) -> Any:
    return OffsetFetchRequest(
        group_id=group, topics=(OffsetFetchRequestTopic(topic, (0,)),), require_stable=stable
    )


def _producers(topic: str) -> DescribeProducersRequest:
    return DescribeProducersRequest((TopicRequest(topic, (0, 7)),))


@script(ApiKey.LIST_TRANSACTIONS)
def listing_transactions(session: Session) -> None:
    session.ask("of a state that is none", ListTransactionsRequest(state_filters=("NoSuch",)))
    session.ask("of a producer that is none", ListTransactionsRequest(producer_id_filters=(987_654_321,)))
