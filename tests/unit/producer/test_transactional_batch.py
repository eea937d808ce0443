from __future__ import annotations

import pytest

from pyspark_kafkalog.formats.batch import CRC_POSITION
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.producer.encoder import RecordBatches
from tests.support.formats.vectors import Vector, vectors


@pytest.mark.parametrize("vector", vectors("v2-kp-tx", "v2-aio-tx", "v2-confluent-txn"), ids=lambda v: v.file)
def test_a_batch_of_a_transaction_is_byte_for_byte_that_of_other_clients(vector: Vector) -> None:
    (golden,) = vector.batches
    rows = vector.records(golden)
    keys = [row.key for row in rows]
    producer = golden["producer_id"], golden["producer_epoch"], golden["base_sequence"]
    encoded = RecordBatches(Codec.NONE, None, transactional=True).encode(
        [row.value for row in rows],
        keys if any(keys) else None,
        [row.timestamp for row in rows],
        None,
        producer,
    )
    # Up to the checksum stand what a broker sets: offset, length, leader epoch, magic.
    assert encoded[CRC_POSITION:] == vector.data[CRC_POSITION:]
    assert len(encoded) == len(vector.data)
