"""Where the partitions of a state topic are, as a test says."""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError


class ShiftingPlacement:
    """*Not thread-safe.* A `Placement`: every partition is refused with the ``code``, none without."""

    def __init__(self, code: ErrorCode | None = None, partitions: int | None = 1) -> None:
        self.code = code
        self.partitions = partitions

    def count(self) -> int | None:
        return self.partitions

    def refusal(self, number: int) -> KafkaError | None:
        return None if self.code is None else ServerError(self.code, f"partition {number}")
