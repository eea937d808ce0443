"""Both engines against the bytes of foreign clients."""

from __future__ import annotations

import pytest

from tests.support.columnar.rows import ENGINES, column, decode, offsets
from tests.support.formats.vectors import Vector, vector, vectors

V2 = vectors("v2-", "fetch-")
OLDER = vectors("v0-", "v1-")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("vector", V2, ids=lambda v: v.file)
def test_rows_are_what_the_manifest_says(vector: Vector, engine: str) -> None:
    decoded = decode(vector.data, engine)
    batches = [batch for batch in vector.batches if not batch.get("control")]
    records = [record for batch in batches for record in vector.records(batch)]
    assert offsets(decoded) == [record.offset for record in records]
    assert column(decoded, "key") == [record.key for record in records]
    assert column(decoded, "value") == [record.value for record in records]
    assert column(decoded, "timestamp") == [record.timestamp * 1000 for record in records]
    assert column(decoded, "headers") == [
        [{"key": name, "value": value} for name, value in record.headers] or None for record in records
    ]
    assert set(column(decoded, "topic")) <= {"t"}
    assert set(column(decoded, "partition")) <= {0}
    assert set(column(decoded, "broker")) <= {7}
    assert decoded.next_offset == vector.batches[-1]["last_offset"] + 1
    assert decoded.records == len(records)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_transaction_log_is_read_committed_or_not_as_asked(engine: str) -> None:
    data = vector("v2-txn-log.bin").data
    assert offsets(decode(data, engine, aborted=[(4000, 0)])) == [0, 1, 2, 4, 5, 6, 7]
    assert offsets(decode(data, engine, aborted=[(4000, 0)], read_committed=True)) == [4, 5, 6, 7]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("vector", OLDER, ids=lambda v: v.file)
def test_rows_of_older_message_sets_are_what_the_manifest_says(vector: Vector, engine: str) -> None:
    decoded = decode(vector.data, engine)
    records = [record for batch in vector.batches for record in vector.records(batch)]
    assert offsets(decoded) == [record.offset for record in records]
    assert column(decoded, "key") == [record.key for record in records]
    assert column(decoded, "value") == [record.value for record in records]
    assert column(decoded, "timestamp") == [record.timestamp * 1000 for record in records]
    assert set(column(decoded, "timestampType")) == {-1 if vector.file.startswith("v0") else 0}
    assert column(decoded, "headers") == [None] * len(records)
    assert decoded.next_offset == records[-1].offset + 1
