"""What docs/clients.md shows is run as it stands there, but for the address."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog import (
    Consumer,
    ConsumerRecord,
    NewTopic,
    TopicPartition,
    committed_offsets,
    create_topics,
    read_arrow,
)
from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.message_set import records
from tests.support.protocol.raw_client import RawClient

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "clients.md").read_text("utf-8")
Run = Callable[..., None]


@pytest.fixture
def servers() -> Iterator[str]:
    with start_broker() as broker:
        as_sent = {"message.format.version": "producer"}
        create_topics(
            broker.bootstrap_servers,
            [NewTopic(name, 1, configs=as_sent) for name in ("flights", "clicks", "views")],
        )
        yield broker.bootstrap_servers


@pytest.fixture
def run(servers: str) -> Run:
    """``run(words)``: the only example of the page with these words."""

    def execute(words: str, **names: object) -> None:
        (code,) = (one for one in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if words in one)
        exec(compile(code.replace("localhost:9092", servers), "docs/clients.md", "exec"), dict(names))

    return execute


def test_the_examples_of_producer_and_consumer(
    servers: str, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("on_delivery=report")
    assert capsys.readouterr().out.splitlines() == ["1000"]
    sent = [b"%d" % number for number in range(1000)] + [b"last"]
    with read_arrow(servers, "flights", columns=["value"]) as rows:
        assert rows.read_all().column("value").to_pylist() == sent
    seen: list[tuple[object, ...]] = []

    def note(*words: object) -> None:
        """As print, but the loop that it is called in ends after three records."""
        seen.append(words)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("dashboard", print=note)
    assert seen == [("flights", 0, n, b"UA", b"%d" % n) for n in range(3)]
    run("seek_to_beginning")
    assert capsys.readouterr().out.splitlines() == [str(value) for value in sent]
    poll, polled = Consumer.poll, list[list[ConsumerRecord]]()

    def patient(self: Consumer, timeout: float) -> list[ConsumerRecord]:
        """It waits for records however long they take, and not long for there to be no more."""
        assert timeout == 10.0
        polled.append(poll(self, 0.1 if sum(map(len, polled)) == len(sent) else 90.0))
        return polled[-1]

    monkeypatch.setattr(Consumer, "poll", patient)
    run("loaders")
    assert capsys.readouterr().out.splitlines() == [str(value) for value in sent]
    tp = TopicPartition("flights", 0)
    assert committed_offsets(servers, "loaders", [tp])[tp].offset == len(sent)


def test_the_examples_of_transactions(servers: str, run: Run) -> None:
    run("clicks-to-views")
    run("prepare_transaction")
    with read_arrow(servers, "views", options={"kafka.isolation.level": "read_committed"}) as rows:
        assert rows.read_all().column("value").to_pylist() == [b"one view", b"another view"]
    tp = TopicPartition("clicks", 0)
    assert committed_offsets(servers, "clicks-to-views", [tp], stable=True)[tp].offset == 5


def test_the_example_of_an_old_format_writes_it(servers: str, run: Run) -> None:
    with RawClient(int(servers.rpartition(":")[2])) as client:
        run("message.format")
        stored = client.fetch("clicks", 0).records
    assert stored is not None
    assert magic_at(stored, 0) == 1
    assert [(r.key, r.value) for r in records(stored, start_offset=0, max_bytes=1000)] == [(b"k", b"one")]
