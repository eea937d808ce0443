"""Spark's own writers at ``s3a://``, where loads have their ledgers."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.stores import object_clients
from pyspark_kafkalog.stores.locations import open_store
from tests.peers.conftest import SparkAtS3
from tests.support.ledger.s3_server import BUCKET, KEYS


@pytest.fixture
def files(s3a: SparkAtS3, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bucket that the session writes to, through our own client."""
    monkeypatch.setattr(object_clients, "_given", {})
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3a.port}"}.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3a://{BUCKET}")


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_what_spark_writes_is_listed_and_read(s3a: SparkAtS3, files: Any, kind: str) -> None:
    url = f"s3a://{BUCKET}/{kind}"
    assert s3a.process.call("tests.support.spark.spark_errands:written", url=url, kind=kind, count=7) == [
        *range(7)
    ]
    found = sorted(files.files(kind), key=lambda file: file.name)
    assert [file.name.rpartition(".")[2] for file in found if file.bytes] == [kind] * 2
    with files.open_file(found[-1]) as file:
        assert file.read(3) == {"parquet": b"PAR", "orc": b"ORC"}[kind]
