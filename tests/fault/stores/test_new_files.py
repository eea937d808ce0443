"""Files of a table as tasks write them into a bucket: in parts, whole or not at all."""

from __future__ import annotations

import tempfile
from typing import Any, BinaryIO

import boto3
import pytest

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore
from tests.support.ledger.s3_server import BUCKET, Gate
from tests.support.until import until

PART = 8 << 20
DATA = bytes(range(256)) * 80_000  # 20 MB: three parts


@pytest.fixture
def s3(url: str) -> FileStore:
    return open_store(url)


def put(store: FileStore, name: str, data: bytes = DATA) -> int:
    file = store.new_file(name)
    for at in range(0, len(data), 3_000_000):
        file.write(data[at : at + 3_000_000])
    file.close()
    assert file.bytes == len(data)
    return file.crc32c


def unfinished(gate: Gate) -> list[Any]:
    client = boto3.client("s3", endpoint_url=gate.endpoint)
    return list(client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


@pytest.mark.parametrize("data", [DATA, DATA[: PART // 4], b""], ids=["parts", "one", "empty"])
def test_a_file_is_there_whole(s3: FileStore, gate: Gate, data: bytes) -> None:
    assert put(s3, "t/day=1/a b.parquet", data) == crc32c(data)
    assert s3.read("t/day=1/a b.parquet") == data
    assert unfinished(gate) == []


@pytest.mark.parametrize("fault", ["503 SlowDown", "lost", "500 InternalError"])
def test_a_part_that_fails_is_sent_again(s3: FileStore, gate: Gate, fault: str) -> None:
    gate.script += ["", fault]
    put(s3, "x")
    assert gate.script == []
    assert s3.read("x") == DATA


def test_a_file_that_cannot_be_uploaded_leaves_no_parts(s3: FileStore, gate: Gate) -> None:
    gate.script += ["", "403 AccessDenied"]
    with pytest.raises(LoadError, match=r"cannot write .*/x: AccessDenied: S3's words on AccessDenied"):
        put(s3, "x")
    assert s3.file("x") is None
    assert unfinished(gate) == []


def test_a_file_that_is_given_up_is_never_seen(s3: FileStore, gate: Gate) -> None:
    file = s3.new_file("x")
    file.write(DATA[:PART])
    file.abort()
    assert (s3.file("x"), unfinished(gate), gate.count) == (None, [], 2)


def test_a_full_disk_of_this_machine_is_told(s3: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> BinaryIO:
        return open("/dev/full", "w+b", buffering=0)  # noqa: PTH123

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    file = s3.new_file("x")
    with pytest.raises(
        LoadError, match=r"cannot write a temporary file in .*: No space left on device; free"
    ):
        file.write(b"x")
    file.abort()


def test_a_large_file_is_sent_while_it_is_written(s3: FileStore, gate: Gate) -> None:
    file = s3.new_file("x")
    file.write(DATA)
    until(lambda: unfinished(gate))
    file.write(DATA)
    file.close()
    assert s3.read("x") == DATA + DATA


def test_a_large_file_that_is_given_up_leaves_no_parts(s3: FileStore, gate: Gate) -> None:
    file = s3.new_file("x")
    file.write(DATA)
    until(lambda: unfinished(gate))
    file.abort()
    assert (s3.file("x"), unfinished(gate)) == (None, [])


def test_a_large_file_that_is_refused_is_not_written_on(s3: FileStore, gate: Gate) -> None:
    gate.script += ["403 AccessDenied"]
    file = s3.new_file("x")
    with pytest.raises(LoadError, match=r"cannot write .*/x: AccessDenied"):
        until(lambda: file.write(DATA) is None)
    file.abort()
    assert s3.file("x") is None
