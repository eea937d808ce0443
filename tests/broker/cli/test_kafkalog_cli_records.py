"""``kafkalog produce`` and ``kafkalog consume`` as their users start them, against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_partitions
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.command_line import COMMAND, SECONDS, environment, kafkalog, kafkalog_bytes
from tests.support.formats.vectors import vector
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.until import until


@pytest.fixture
def server(running_broker: EmbeddedBroker) -> str:
    return running_broker.bootstrap_servers


@pytest.fixture
def one(client: RawClient, topic_name: str) -> str:
    """A topic with one partition."""
    assert client.create_topic(topic_name).error_code == 0
    return topic_name


def values(client: RawClient, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in client.read(topic, 0, partition)]


@pytest.mark.long("dozens of commands")
@pytest.mark.parametrize("command", ["consume", "offsets"])
def test_a_full_disk_after_the_output_is_one_line_and_exit_code_1(
    server: str, client: RawClient, one: str, command: str
) -> None:
    client.produce(one, batch(b"a"))
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [*COMMAND, command, one], env=environment(server), stdout=full, stderr=subprocess.PIPE,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    assert (ran.returncode, ran.stderr.count(b"\n")) == (1, 1), ran.stderr
    assert b"No space left on device" in ran.stderr


def test_a_line_is_a_record_with_all_its_bytes(server: str, client: RawClient, one: str) -> None:
    ran = kafkalog("produce", one, server=server, said=b"a\n\n\xff\r\nthe last has no end")
    assert ran.returncode == 0
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"{one}: 4 records, 22 bytes delivered in ")
    assert values(client, one) == [b"a", b"", b"\xff\r", b"the last has no end"]


def test_keys_headers_compression_and_partition_are_as_asked_for(
    server: str, client: RawClient, topic: str, tmp_path: Path
) -> None:
    for name, text in (("one", "k\tv\twith a tab\n"), ("two", "\tno key\n")):
        (tmp_path / name).write_text(text)
    ran = kafkalog(
        "produce", topic, "one", "-", "two", "--key-separator", "\\t", "--partition", "1",
        "-H", "h=1", "-H", "h=x=y", "--compression", "zstd", "--quiet",
        server=server, said="s\tstdin", cwd=tmp_path,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    read = client.read(topic, 0, 1)
    assert [(r.key, r.value) for r in read] == [(b"k", b"v\twith a tab"), (b"s", b"stdin"), (b"", b"no key")]
    assert {r.headers for r in read} == {(("h", b"1"), ("h", b"x=y"))}


def test_a_whole_file_is_a_record(server: str, client: RawClient, one: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"two\nlines\n")
    (tmp_path / "b").write_bytes(bytes(range(256)))
    ran = kafkalog("produce", one, "a", "b", "--whole", "--key", "k", server=server, cwd=tmp_path)
    assert ran.returncode == 0
    assert [(r.key, r.value) for r in client.read(one)] == [
        (b"k", b"two\nlines\n"),
        (b"k", bytes(range(256))),
    ]
    (tmp_path / "b").write_bytes(bytes(2000))
    small = ("--property", "max.request.size=1500")
    ran = kafkalog("produce", one, "a", "b", "--whole", *small, server=server, cwd=tmp_path)
    assert ran.returncode == 1
    assert "kafkalog: b: the record is larger than max.request.size=1500" in ran.stderr
    assert f"{one}: 1 record, 10 bytes delivered" in ran.stderr


def test_json_comes_out_as_it_went_in(server: str, client: RawClient, topic: str, topic_name: str) -> None:
    lines = [
        {"key": "k", "value": "v", "partition": 1, "timestamp": 1_700_000_000_000, "headers": [["h", "1"]]},
        {"key": None, "value": None, "partition": 0, "timestamp": 5, "headers": []},
        {"key": {"base64": "/w=="}, "value": "ü", "partition": 1, "timestamp": 6, "headers": [["e", None]]},
    ]
    said = "\n".join(map(json.dumps, lines)) + "\n\n"
    assert kafkalog("produce", topic, "--json", server=server, said=said).returncode == 0
    out = kafkalog("consume", topic, "--format", "json", server=server)
    read = [json.loads(line) for line in out.stdout.splitlines()]
    assert read == [
        {"topic": topic, "offset": 0, **lines[1]},
        {"topic": topic, "offset": 0, **lines[0]},
        {"topic": topic, "offset": 1, **lines[2]},
    ]
    assert f"{topic}: 3 records, {len(out.stdout.encode())} bytes written" in out.stderr

    copy = f"{topic_name}-copy"
    client.create_topic(copy)
    refused = kafkalog("produce", copy, "--json", server=server, said=out.stdout)
    assert refused.returncode == 1
    assert f"<stdin>:2: {copy}-1: no such partition" in refused.stderr
    assert (
        kafkalog("produce", copy, "--json", "--repartition", server=server, said=out.stdout).returncode == 0
    )
    assert values(client, copy) == [None, None, b"v", "ü".encode()]


@pytest.mark.parametrize(
    ("arguments", "said", "why"),
    [
        (["--key-separator", ":"], "a:1\nb:2\nc3\nd:4\n", "<stdin>:3: no key separator ':'"),
        (
            ["--json"],
            '{"value": "1"}\n\n{"value": "2"}\n{"valeu": "3"}\n',
            "<stdin>:4: unknown field 'valeu'",
        ),
        (
            ["--property", "max.request.size=20000"],
            "1\n2\n" + "x" * 19_999 + "\n4\n",
            "<stdin>:3: {topic}: a record of about 20",
        ),
        (
            ["--property", "max.request.size=20000"],
            "1\n2\n" + "x" * 29_999,
            "<stdin>:3: the line is longer than 20000 bytes",
        ),
    ],
)
def test_a_wrong_line_is_reported_with_its_number_and_nothing_after_it_is_sent(
    server: str, client: RawClient, one: str, arguments: list[str], said: str, why: str
) -> None:
    ran = kafkalog("produce", one, *arguments, server=server, said=said)
    assert ran.returncode == 1
    assert ran.stderr.startswith("kafkalog: " + why.format(topic=one))
    assert "this and everything after it was not sent" in ran.stderr
    assert f"{one}: 2 records, 2 bytes delivered" in ran.stderr
    assert values(client, one) == [b"1", b"2"]


def test_what_the_broker_refuses_is_reported_with_the_lines_it_came_from(
    server: str, client: RawClient, topic_name: str
) -> None:
    client.create_topic(topic_name, configs={"max.message.bytes": "300"})
    said = "small\n" + "x" * 500 + "\n" + "y" * 400 + "\n"
    ran = kafkalog("produce", topic_name, "--property", "batch.size=0", server=server, said=said)
    assert ran.returncode == 1
    assert f"kafkalog: not delivered: <stdin>:2: {server}: {topic_name}-0: " in ran.stderr
    assert f"{topic_name}: 1 record, 5 bytes delivered, " in ran.stderr
    assert values(client, topic_name) == [b"small"]


def test_a_topic_that_is_not_there_ends_both_commands() -> None:
    with ScriptedBroker() as broker:
        made = kafkalog("produce", "not-there", server=broker.address, said="x\n")
        assert made.returncode == 1
        assert "<stdin>:1: topic not-there: it does not exist" in made.stderr
        read = kafkalog("consume", "not-there", server=broker.address)
        assert (read.returncode, read.stdout) == (1, "")
        assert read.stderr == f"kafkalog: topic 'not-there' does not exist on {broker.address}\n"


def test_a_read_begins_and_ends_where_asked(server: str, client: RawClient, one: str) -> None:
    for i in range(10):
        client.produce(one, batch(b"%d" % i, timestamp=1_700_000_000_000 + i * 1000))

    def read(*arguments: str) -> str:
        ran = kafkalog("consume", one, *arguments, server=server)
        assert ran.returncode == 0, ran.stderr
        return "".join(ran.stdout.split())

    assert read() == "0123456789"
    assert read("--from", "7") == "789"
    assert read("--from", "-3", "--to", "9") == "78"
    assert read("--from", "latest") == read("--from", "99") == read("--max", "0") == ""
    assert read("--from", "2023-11-14T22:13:23Z", "--to", "timestamp:1700000005001") == "345"
    assert read("--from", "2030-01-01") == ""
    assert read("--from", "4", "--max", "2") == "45"


def test_all_partitions_are_read_and_some_if_so_asked(server: str, client: RawClient, topic: str) -> None:
    client.produce(topic, batch(b"a", b"b"), 0)
    client.produce(topic, batch(b"c"), 1)
    assert sorted(kafkalog("consume", topic, server=server).stdout.split()) == ["a", "b", "c"]
    assert kafkalog("consume", topic, "--partition", "1", server=server).stdout == "c\n"
    missing = kafkalog("consume", topic, "-p", "1", "-p", "7", server=server)
    assert missing.returncode == 1
    assert "has no partition 7; it has 0 to 1" in missing.stderr


def test_raw_values_come_as_they_are_and_keys_if_so_asked(server: str, one: str) -> None:
    kafkalog("produce", one, "--key-separator", ":", server=server, said=b"k:\xff\n:v\n")
    assert kafkalog_bytes("consume", one, "--format", "raw", server=server).stdout == b"\xffv"
    assert kafkalog_bytes("consume", one, "--key-separator", "\\t", server=server).stdout == b"k\t\xff\n\tv\n"


@pytest.mark.long("dozens of commands")
def test_a_reader_that_has_enough_ends_it_without_a_word(server: str, client: RawClient, one: str) -> None:
    for _ in range(20):
        client.produce(one, batch(*[b"%06d" % i for i in range(5000)]))
    process = subprocess.Popen(
        [*COMMAND, "consume", one], env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"000000\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(SECONDS) == 0


@pytest.fixture
def followed(server: str, client: RawClient, one: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that follows ``one`` from its last record on."""
    client.produce(one, batch(b"before"))
    client.produce(one, batch(b"last"))
    process = subprocess.Popen(
        [*COMMAND, "consume", one, "--follow", "--from", "-1"],
        env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


@pytest.mark.long("dozens of commands")
def test_following_shows_what_comes_until_it_is_interrupted(
    client: RawClient, one: str, followed: subprocess.Popen[bytes]
) -> None:
    assert followed.stdout is not None
    assert followed.stdout.readline() == b"last\n"
    for value in (b"one", b"two"):
        client.produce(one, batch(value))
        assert followed.stdout.readline() == value + b"\n"
    followed.send_signal(signal.SIGINT)
    rest, words = followed.communicate(timeout=SECONDS)
    assert (followed.returncode, rest) == (0, b"")
    assert words.decode() == f"{one}: 3 records, 13 bytes written\n"


@pytest.mark.long("dozens of commands")
def test_a_member_that_is_ended_leaves_its_group(server: str, client: RawClient, one: str) -> None:
    client.produce(one, batch(b"read"))
    process = subprocess.Popen(
        [*COMMAND, "consume", one, "--follow", "--group", one],
        env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"read\n"
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=SECONDS)
    assert (process.returncode, words.decode()) == (0, f"{one}: 1 record, 5 bytes written\n")
    groups = map(json.loads, kafkalog("groups", "list", "--json", server=server).stdout.splitlines())
    assert [group["state"] for group in groups if group["group"] == one] == ["Empty"]


def test_following_sees_new_partitions(
    server: str,
    client: RawClient,
    one: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    from pyspark_kafkalog.cli import consume as command

    monkeypatch.setattr(command, "_NEW_PARTITIONS_SECONDS", 0.0)
    monkeypatch.setattr(command, "_POLL_SECONDS", 0.01)
    client.produce(one, batch(b"old"))
    create_partitions(server, {one: 2})
    client.produce(one, batch(b"new"), 1)
    only = [0]
    reader_of = command.chosen_partitions
    # As if the second partition had come after the start.
    monkeypatch.setattr(command, "chosen_partitions", lambda cluster, name, _: reader_of(cluster, name, only))
    command.consume(one, follow=True, most=2, server=server)
    assert capfdbinary.readouterr().out == b"old\nnew\n"


def test_aborted_records_are_left_out_of_a_committed_read() -> None:
    # Offsets 0-2 of an aborted transaction, markers at 3 and 8.
    log = ScriptedLog(vector("v2-txn-log.bin").data, aborted=[(4000, 0)], at_once=True)
    with serving(log) as broker:
        for level, offsets in (("read_committed", [4, 5, 6, 7]), ("read_uncommitted", [0, 1, 2, 4, 5, 6, 7])):
            ran = kafkalog(
                "consume", "t", "--format", "json", "--isolation-level", level, server=broker.address
            )
            assert [json.loads(line)["offset"] for line in ran.stdout.splitlines()] == offsets


def test_offsets_that_are_gone_are_an_error_with_what_is_left() -> None:
    log = ScriptedLog(batches(range(5, 10)), start=5)
    with serving(log) as broker:
        ran = kafkalog("consume", "t", "--from", "2", server=broker.address)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "t-0: offset 2 is outside [5, 10]" in ran.stderr
        assert kafkalog("consume", "t", server=broker.address).stdout.count("\n") == 5


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("consume", "t", "--from", "soon"), "--from: 'soon' is not a position; allowed: earliest, latest"),
        (("consume", "t", "--follow", "--to", "5"), "--to and --follow cannot be combined"),
        (
            ("consume", "t", "--format", "raw", "--key-separator", ","),
            "--key-separator needs --format value",
        ),
        (("consume", "t", "--format", "xml"), "'xml' is not one of"),
        (("consume", "t", "--property", "fetch.max.bytes=0"), "fetch.max.bytes=0 is not allowed"),
        (("produce", "t", "--whole", "--json"), "--json and --whole cannot be combined"),
        (("produce", "t", "--json", "--key", "k"), "--key and --json cannot be combined"),
        (("produce", "t", "--repartition"), "--repartition needs --json"),
        (("produce", "t", "--key-separator", ""), "'' cannot be a key separator"),
        (("produce", "t", "--compression", "rar"), "compression.type=rar is not allowed"),
        (("produce", "t", "-", "not-there.txt"), "cannot read not-there.txt: no such file"),
        (("produce", "t", "--property", "acks"), "'acks' is not name=value"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_with_code_2(arguments: tuple[str, ...], why: str) -> None:
    ran = kafkalog(*arguments, server="127.0.0.1:1")
    assert ran.returncode == 2
    assert why in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.long("dozens of commands")
def test_typing_is_sent_as_it_comes_and_an_interrupt_ends_it(
    server: str, client: RawClient, one: str
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "produce", one],
        env=environment(server), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("typed\n")
    process.stdin.flush()
    until(lambda: values(client, one) == [b"typed"])
    os.kill(process.pid, signal.SIGINT)
    _, words = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert words.startswith(f"{one}: 1 record, 5 bytes delivered")
