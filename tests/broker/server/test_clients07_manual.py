"""What docs/classic-clients.md shows is run as it stands there, but for the ports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pyspark_kafkalog
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.consumer.stream import ConsumerTimeout
from pyspark_kafkalog.classic.producer.async_producer import CallbackHandler
from tests.support.until import until
from tests.support.zookeeper import PATIENT

MANUAL = (Path(__file__).resolve().parents[3] / "docs" / "classic-clients.md").read_text(encoding="utf-8")


def run(example: str, port: int, zookeeper_connect: str) -> None:
    code = example.replace("9093", str(port)).replace("localhost:2181", zookeeper_connect)
    exec(compile(code, "docs/classic-clients.md", "exec"), {})


@pytest.mark.long("a broker that is started more than once")
def test_the_examples_do_what_they_say(
    zookeeper_connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        **PATIENT, "listeners": "KAFKA07://127.0.0.1:0", "zookeeper.connect": zookeeper_connect,
        "log.flush.interval": 1,
    }  # fmt: skip
    with start_broker(settings, data_dir=tmp_path) as broker:
        port = broker.port_of("KAFKA07")
        examples = re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL)
        (endless,) = (example for example in examples if "ConsumerConnector" in example)
        examples.remove(endless)
        assert len(examples) == 3
        for example in examples:
            run(example, port, zookeeper_connect)
        assert capsys.readouterr().out.splitlines() == ["13 b'one'", "26 b'two'", "41 b'three'"]
        # The manual's consumer waits for more for ever; this one gives up when it has read what there is.
        found_by = '"groupid": "loaders", "autooffset.reset": "smallest", "consumer.timeout.ms": 2000'
        read: list[str] = []

        def has_read_all() -> bool:
            """Goes on where it was, if the machine stood still for two seconds before the end."""
            with pytest.raises(ConsumerTimeout):
                run(endless.replace('"groupid": "loaders"', found_by), port, zookeeper_connect)
            read.extend(capsys.readouterr().out.splitlines())
            return len(read) >= 1005

        until(has_read_all)
        with SimpleConsumer("127.0.0.1", port) as consumer:
            found, position = [], 0
            while messages := list(consumer.fetch("clicks", 0, position)):
                found += [bytes(payload) for payload, _ in messages]
                position = messages[-1][1]
    assert read[:2] == ["clicks 0 0 0 b'one'", "clicks 0 0 13 b'two'"]
    assert len(read) == len(found) == 1005
    assert found[:3] == [b"one", b"two", b"three"]
    assert found[3:-2] == [b"click %d" % n for n in range(1000)]
    assert found[-2:] == [b"one", b"two"]


def test_the_table_of_names_is_what_the_package_exports() -> None:
    table = MANUAL.partition("| Name |")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(names) == 12
    for name in names:
        assert getattr(pyspark_kafkalog, name).__name__ == name


def test_the_table_of_hooks_has_each_of_them() -> None:
    table = MANUAL.partition("| Hook of")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| `(\w+)\(", table, re.MULTILINE))
    assert named == {name for name in vars(CallbackHandler) if not name.startswith("_")}
