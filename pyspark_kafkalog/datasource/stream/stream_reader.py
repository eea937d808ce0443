"""The stream as Spark's Python data sources know it, from 4.0 on: `StreamDriver` decides, tasks read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_kafkalog.datasource.batch.batch_reader import TaskReader
from pyspark_kafkalog.datasource.options.option_definitions import StreamOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import SubscribePattern
from pyspark_kafkalog.datasource.stream.stream_batches import NO_LIMITS, BatchLimits
from pyspark_kafkalog.datasource.stream.stream_driver import StreamDriver
from pyspark_kafkalog.datasource.stream.stream_offsets import StreamOffset, decode_offsets, encode_offsets
from pyspark_kafkalog.errors import InvalidConfig, briefly

try:
    from pyspark.sql.streaming import datasource as admission
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which has neither limits nor this trigger for Python sources

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Not used by Spark before 4.2."""


if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """*Not thread-safe.* One for each run of a query, in its driver; tasks have copies, which only read."""

    _options: StreamOptions

    def __init__(self, options: StreamOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._driven: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driven": None}

    @briefly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return encode_offsets(self._driver.initial())

    @briefly
    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next batch; see `StreamDriver.latest`. Spark before 4.2 gives neither argument."""
        known = None if start is None else self._decoded(start)
        found = self._driver.latest(known, self._limits(limit))
        # Spark compares the text: an offset in another form, as from its own connector, is the same offset.
        return start if start is not None and found is known else encode_offsets(found)

    @briefly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._driver.plan(self._decoded(start), self._decoded(end))

    def commit(self, end: dict[str, Any]) -> None:
        """See `StreamDriver.finished`. Spark calls it while it plans the next batch."""
        self._driver.finished(decode_offsets(end))

    def stop(self) -> None:
        if self._driven is not None:
            self._driven.close()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark passes this to `latestOffset`, or else ReadAllAvailable (Trigger.Once)."""
        if self._options.max_offsets is not None:
            return admission.ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return admission.ReadMinRows(self._options.min_offsets)
        return admission.ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The logs' last known ends, for the progress of the query; None before."""
        newest = self._driver.newest
        return None if newest is None else encode_offsets(newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.fix_end()

    @property
    def _driver(self) -> StreamDriver:
        if self._driven is None:
            self._driven = StreamDriver(self._options)
        return self._driven

    def _decoded(self, offset: dict[str, Any]) -> StreamOffset:
        found, subscription = decode_offsets(offset), self._options.subscription
        if not found.offsets and not isinstance(subscription, SubscribePattern):
            # A pattern may have matched nothing yet; here all records would be read again.
            raise InvalidConfig(
                f"the checkpoint has an offset without partitions, and the query reads "
                f"{', '.join(sorted(subscription.names))}: begin with a new checkpoint, and startingOffsets"
            )
        return found

    def _limits(self, limit: ReadLimit | None) -> BatchLimits:
        """Both bounds: Spark has no limit with two, so the other one is the option's."""
        if limit is not None and isinstance(limit, admission.ReadAllAvailable):
            return NO_LIMITS
        return BatchLimits(self._options.min_offsets, self._options.max_offsets)
