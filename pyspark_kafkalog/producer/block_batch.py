"""A batch whose records are encoded when they are added, by compiled code."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_kafkalog.formats.record import read_fields
from pyspark_kafkalog.producer.arrow_rows import ArrowRows
from pyspark_kafkalog.producer.batch import ProducerBatch
from pyspark_kafkalog.producer.encoding import Encoding, RecordBatches
from pyspark_kafkalog.types import Header


class BlockBatch(ProducerBatch):
    """*As `ProducerBatch`.* Becomes one of lists as soon as anything else is added, or it is split."""

    __slots__ = ("_blocks",)

    def extend_rows(self, rows: ArrowRows, size: int) -> int:
        index = self.count
        if self.values:
            return super().extend_rows(rows, size)
        if not index:
            self._blocks: list[bytes] = []
        self.times += rows.times()
        # The rows' Arrow batch may hold many more rows: it is not kept for these.
        self._blocks.append(rows.encoded(self.times[0], index))
        self.size += size
        self.count = index + len(rows)
        return index

    def add(
        self, value: bytes | None, key: bytes | None, time: int, headers: Sequence[Header], size: int
    ) -> int:
        self._as_lists()
        return super().add(value, key, time, headers, size)

    def encode(self, encoding: Encoding) -> bytes:
        if self.values or not isinstance(encoding, RecordBatches):
            self._as_lists()
            return super().encode(encoding)
        if self.encoded is None:
            identity = (self.producer_id, self.epoch, self.base_sequence)
            self.encoded = encoding.sealed(b"".join(self._blocks), self.times, identity)
        return self.encoded

    def _as_lists(self) -> None:
        if self.values or not self.count:
            return
        fields = read_fields(b"".join(self._blocks), self.count)
        self._blocks = []
        self.values = [value for _, _, _, value, _ in fields]
        keys = [key for _, _, key, _, _ in fields]
        self.keys = keys if any(key is not None for key in keys) else None

    def _release(self) -> None:
        super()._release()
        self._blocks = []
