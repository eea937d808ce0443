"""The fixtures as a user has them: in a run of pytest somewhere else, with nothing of ours around."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def kafka_broker_properties():
    return {"num.partitions": 3, "message.max.bytes": 2000}
"""

TESTS = """
import pytest
from pyspark_kafkalog import Consumer, MessageTooLarge, Producer

names = []

def produce(broker, topic, *values, **config):
    with Producer({"bootstrap.servers": broker.bootstrap_servers, **config}) as producer:
        for value in values:
            producer.send(topic, value)

@pytest.mark.parametrize("what", ["one", "a/b c"])
def test_each_has_a_topic_of_its_own(kafka_broker, kafka_topic, kafka_records, what):
    names.append(kafka_topic)
    assert kafka_records(kafka_topic) == []
    produce(kafka_broker, kafka_topic, b"1", b"2")
    produce(kafka_broker, kafka_topic, what.encode())
    assert [record.value for record in kafka_records(kafka_topic)] == [b"1", b"2", what.encode()]
    assert [record.value for record in kafka_records(kafka_topic, count=2)][:2] == [b"1", b"2"]

def test_topics_are_named_by_their_tests_and_deleted(kafka_broker):
    assert [name.rpartition("-")[0] for name in names] == [
        "test_each_has_a_topic_of_its_own-one-", "test_each_has_a_topic_of_its_own-a-b-c-"
    ]
    config = {"bootstrap.servers": kafka_broker.bootstrap_servers, "allow.auto.create.topics": "false"}
    with Consumer(config) as consumer:
        assert [consumer.partitions_for(name) for name in names] == [[], []]

def test_aborted_records_are_not_there(kafka_broker, kafka_topic, kafka_records):
    servers = kafka_broker.bootstrap_servers
    with Producer({"bootstrap.servers": servers, "transactional.id": "t"}) as producer:
        producer.init_transactions()
        for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
            producer.begin_transaction()
            producer.send(kafka_topic, value).result(60)
            end()
    assert [record.value for record in kafka_records(kafka_topic)] == [b"yes"]
    both = kafka_records(kafka_topic, isolation_level="read_uncommitted")
    assert [record.value for record in both] == [b"no", b"yes"]

def test_the_brokers_properties_are_ours(kafka_broker, kafka_topic):
    with Producer({"bootstrap.servers": kafka_broker.bootstrap_servers}) as producer:
        with pytest.raises(MessageTooLarge):
            producer.send(kafka_topic, b"x" * 3000).result(60)

def test_no_topic(kafka_records):
    kafka_records("typo")

def test_too_few_records(kafka_broker, kafka_topic, kafka_records):
    produce(kafka_broker, kafka_topic, b"only")
    kafka_records(kafka_topic, count=2, timeout=0)
"""


def run_pytest(directory: Path) -> str:
    """What pytest says of the tests in ``directory``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(directory)]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=600
    ).stdout


def test_an_applications_tests_have_a_broker_topics_and_their_records(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_application.py").write_text(TESTS)
    said = run_pytest(tmp_path)
    assert "2 failed, 5 passed" in said, said
    assert "there is no topic 'typo'" in said
    assert "test_too_few_records" in said
    assert ": 1 records (b'only') after 0 s, not 2" in said or ": no records after 0 s, not 2" in said


@pytest.mark.parametrize(
    ("names", "passed"),
    [
        (["conftest.py", "test_confluent_kafka.py", "test_aiokafka.py", "test_kafka_python.py"], 3),
        pytest.param(["test_spark.py"], 1, marks=pytest.mark.long("a Spark driver of its own")),
    ],
    ids=["clients", "spark"],
)
def test_the_pages_examples_pass(names: list[str], passed: int, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, text in blocks:
        if name in names:
            (tmp_path / name).write_text(text)
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    said = run_pytest(tmp_path)
    assert re.search(rf"^{passed} passed", said, re.MULTILINE), said
