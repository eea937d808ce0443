"""``kafkalog-broker forget``: a broker that is gone for good, and what the others have in its place."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from kafkalog_broker.cli import main
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.topics import DeleteTopicsRequest
from tests.support.protocol.raw_client import batch
from tests.support.stopping import stop_process
from tests.support.two_brokers import SOON_MISSED, Two, leaders, write_everywhere
from tests.support.until import until
from tests.support.zookeeper import patient_session


@pytest.mark.long("several brokers and their ZooKeeper")
def test_a_broker_that_is_gone_for_good_is_forgotten_and_what_it_had_is_set_aside_when_it_returns(
    two: Two,
) -> None:
    client = two.clients[1]
    two.create("t", 1, 2, 1, 2)
    write_everywhere(two, "t", b"old", 4)
    assert two.forget(2, answer="2\n") == (
        2, "kafkalog-broker: broker 2 is running (/kafka/brokers/ids/2 in ZooKeeper); stop it first\n"
    )  # fmt: skip
    two.stop(2)
    code, said = two.forget(2, answer="no\n")
    assert code == 1
    assert "lost: all records of t, partitions 1, 3" in said
    assert "the process of broker 2 must have ended" in said
    until(lambda: leaders(two.describe(1, "t")) == [1, -1, 1, -1])
    assert two.forget(2, answer="2\n")[1].startswith(
        "2 partitions of 1 topics now belong to brokers [1], empty\n"
    )
    assert two.forget(2, "--yes") == (0, "the cluster has no broker 2, nor partitions of it\n")
    until(lambda: leaders(two.describe(1, "t")) == [1, 1, 1, 1])
    before, start = client.offset_at("t", -2, 0).offset, client.offset_at("t", -2, 1).offset
    assert before == 0
    assert start > 1_000_000_000_000_000, "microseconds: no partition gets a million records a second"
    assert client.produce("t", batch(b"new"), 1).base_offset == start
    assert [r.value for r in client.read("t", start, 1)] == [b"new"]
    assert [p.leader_epoch for p in two.describe(1, "t").partitions] == [0, 1, 0, 1]
    assert [client.offset_at("t", -1, number).leader_epoch for number in range(4)] == [0, 1, 0, 1]
    late = two.start(2)
    assert late.produce("t", batch(b"x"), 1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert two.aside(2) == ["t.topic", "t_1", "t_3"]
    two.stop(1)
    again = two.start(1)
    assert [r.value for r in again.read("t", start, 1)] == [b"new"]
    assert again.offset_at("t", -1, 3).offset == start
    assert [again.offset_at("t", -1, number).leader_epoch for number in range(4)] == [0, 1, 0, 1]


def test_a_deletion_waits_no_longer_for_a_broker_that_is_forgotten(two: Two, zookeeper_connect: str) -> None:
    two.create("t", 1, 2)
    two.stop(2)
    deleted = two.clients[1].ask(DeleteTopicsRequest(topic_names=("t",), timeout_ms=5000), 5)
    assert deleted.responses[0].error_code == ErrorCode.NONE
    with patient_session(zookeeper_connect) as session:
        assert len(session.children("/kafka/admin/delete_topics")) == 1
        assert two.forget(2) == (0, "the deletion of t no longer waits for broker 2\n"), "nothing is lost"
        assert session.children("/kafka/admin/delete_topics") == []
    two.start(2)
    assert two.aside(2) == ["t.topic", "t_1"]


def test_a_place_without_a_cluster_is_one_clear_error(
    zookeeper_connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = tmp_path / "server.properties"

    def forget(number: int) -> tuple[int, str]:
        return main(["forget", str(number), str(properties), "--yes"]), capsys.readouterr().err

    properties.write_text(f"zookeeper.connect={zookeeper_connect}\nzookeeper.prefix=/nope\n")
    code, said = forget(2)
    assert code == 2
    assert "no broker has made /nope/brokers/topics; check zookeeper.connect and zookeeper.prefix" in said
    properties.write_text("zookeeper.connect=127.0.0.1:1\nzookeeper.connection.timeout.ms=500\n")
    code, said = forget(2)
    assert code == 1
    assert len(said.splitlines()) == 1
    assert "no ZooKeeper answers at 127.0.0.1:1" in said
    assert said.endswith("check zookeeper.connect\n")
    with pytest.raises(SystemExit, match="2"):
        forget(-2)
    assert "a number from 0 on" in capsys.readouterr().err


@pytest.mark.long("several brokers and their ZooKeeper")
def test_a_process_that_was_stopped_and_forgotten_acknowledges_nothing_when_it_continues(two: Two) -> None:
    two.create("t", 1, 2)
    two.stop(2)
    client = two.start(2, SOON_MISSED)
    until(lambda: client.produce("t", batch(b"before"), 1).error_code == ErrorCode.NONE)
    until(lambda: leaders(two.describe(1, "t")) == [1, 2])
    stop_process(two.brokers[2].pid)
    until(lambda: leaders(two.describe(1, "t")) == [1, -1])
    assert two.forget(2, "--yes")[0] == 0
    answers: list[ErrorCode] = []
    sent = threading.Event()

    def produce() -> None:
        sent.set()
        while len(answers) < 500:
            answers.append(ErrorCode(client.produce("t", batch(b"late"), 1).error_code))

    thread = threading.Thread(target=produce)
    thread.start()
    assert sent.wait(60)
    os.kill(two.brokers[2].pid, signal.SIGCONT)
    thread.join(180)
    assert not thread.is_alive()
    assert set(answers) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    until(lambda: two.aside(2) == ["t.topic", "t_1"])
