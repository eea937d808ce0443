"""`Consumer` in groups of the bundled broker; those of Apache Kafka are in tests/peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog import (
    NewTopic,
    Producer,
    TopicPartition,
    committed_offsets,
    create_topics,
)
from pyspark_kafkalog.errors import TransactionAbortable
from tests.support.client.consumer_cases import (
    QUICK_GROUPS,
    ConsumerCases,
    Seat,
    drive,
    new_topic,
    produce,
)
from tests.support.client.scripted_server import refusing_port


@pytest.fixture(scope="module")
def group_broker() -> Iterator[EmbeddedBroker]:
    with start_broker({**QUICK_GROUPS, "auto.create.topics.enable": False}) as broker:
        yield broker


@pytest.mark.long("a broker that is started again")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_continues_after_its_broker_restarts(tmp_path: Path, protocol: str) -> None:
    with refusing_port() as port:  # kept while no broker listens there
        settings = {**QUICK_GROUPS, "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        servers = f"127.0.0.1:{port}"
        with start_broker(settings, data_dir=tmp_path):
            topic = new_topic(servers, 2)
            produce(servers, topic, 10, 2)
            seat = Seat(servers, "g", protocol).subscribe(topic)
            drive([seat], lambda: len(seat.got) == 10)
            seat.consumer.commit()
            member = seat.consumer.member_id
        assert seat.consumer.poll(0.2) == []
        with start_broker(settings, data_dir=tmp_path):
            produce(servers, topic, 10, 2, first=10)
            drive([seat], lambda: len(seat.got) == 20)
            seat.consumer.commit()
            # The group was kept: no rebalance.
            assert (seat.consumer.member_id, seat.calls) == (member, [("assigned", [0, 1])])
            seat.consumer.close()
    assert sorted(seat.values) == sorted(b"%d" % n for n in range(20))


@pytest.mark.long("a broker that is started again")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_look_ups_of_topics_do_not_take_the_groups_answers(
    group_broker: EmbeddedBroker, protocol: str
) -> None:
    """Topics are always due, and so are looked up between any request to the coordinator and its answer."""
    servers = group_broker.bootstrap_servers
    topic = new_topic(servers, 2)
    produce(servers, topic, 10, 2)
    seats = [Seat(servers, f"g-{topic}", protocol, metadata_max_age_ms=0).subscribe(topic) for _ in range(2)]
    drive(seats, lambda: all(len(seat.held) == 1 for seat in seats) and sum(len(s.got) for s in seats) >= 10)
    for seat in seats:
        seat.consumer.close()


def test_records_of_aborted_transactions_are_passed_over_and_their_end_is_committed(
    group_broker: EmbeddedBroker,
) -> None:
    servers = group_broker.bootstrap_servers
    topic = new_topic(servers, 1)
    with Producer({"bootstrap.servers": servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            for number in range(3):
                producer.send(topic, b"%d" % number)
            producer.flush()
            (producer.commit_transaction if commit else producer.abort_transaction)()
    group = f"g-{topic}"
    seat = Seat(servers, group, "classic", isolation_level="read_committed").subscribe(topic)
    # Six records and two markers.
    tp = TopicPartition(topic, 0)
    drive([seat], lambda: bool(seat.held) and seat.consumer.position(tp) == 8)
    assert [r.offset for r in seat.got] == [0, 1, 2]
    seat.consumer.close()
    assert committed_offsets(servers, group)[tp].offset == 8


class TestAtTheBundledBroker(ConsumerCases):
    @pytest.fixture
    def servers(self, group_broker: EmbeddedBroker) -> str:
        return group_broker.bootstrap_servers


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_go_with_the_transaction_unless_the_group_has_given_the_partitions_away(
    group_broker: EmbeddedBroker, protocol: str
) -> None:
    servers = group_broker.bootstrap_servers
    topic, out = new_topic(servers, 1), new_topic(servers, 1)
    produce(servers, topic, 4, 1)
    one = Seat(servers, f"g-{topic}", protocol, enable_auto_commit=False).subscribe(topic)
    two = Seat(servers, f"g-{topic}", protocol).subscribe(topic)
    tp = TopicPartition(topic, 0)
    with Producer({"bootstrap.servers": servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        drive([one], lambda: len(one.got) == 4)
        producer.begin_transaction()
        producer.send(out, b"sum")
        producer.send_offsets_to_transaction({tp: 2}, one.consumer.group_metadata)
        assert committed_offsets(servers, f"g-{topic}") == {}
        producer.commit_transaction()
        assert committed_offsets(servers, f"g-{topic}")[tp].offset == 2
        before = one.consumer.group_metadata
        one.consumer.close()
        drive([two], lambda: len(two.got) == 2)
        producer.begin_transaction()
        with pytest.raises(TransactionAbortable):
            producer.send_offsets_to_transaction({tp: 4}, before)
        producer.abort_transaction()
    two.consumer.close()


def test_a_topic_that_does_not_exist_is_waited_for_with_a_warning(
    group_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    servers = group_broker.bootstrap_servers
    seat = Seat(servers, "g-later", "classic", metadata_max_age_ms=100).subscribe("made-later")
    drive([seat], lambda: "no such topic: made-later" in caplog.text)
    create_topics(servers, [NewTopic("made-later", 1, 1)])
    produce(servers, "made-later", 1, 1)
    drive([seat], lambda: len(seat.got) == 1)
    seat.consumer.close()
    assert caplog.text.count("no such topic") == 1
