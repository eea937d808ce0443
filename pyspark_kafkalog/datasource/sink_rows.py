"""From Spark's Arrow batches to what a producer takes: a batch for each topic, of the columns it knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa


class NullTopic(KafkaError):
    """A row says of no topic where it goes, and neither does the option."""


def rows_by_topic(
    batch: pa.RecordBatch, columns: Sequence[str], topic: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of ``batch`` by topic, each topic's in their order; ``columns`` are those that are written.

    ``topic`` is where all go, if it is given; else the column says it.

    Raises:
        NullTopic: a row has none; nothing of the batch was yielded by then.
    """
    sent = batch.select([name for name in columns if name != "topic"])
    if topic is not None:
        yield topic, sent
        return
    coded = batch.column("topic").dictionary_encode()
    if coded.null_count:
        raise NullTopic(
            "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null topic. "
            "Use the `topic` option for setting a default topic."
        )
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], sent
        return
    import pyarrow.compute as pc

    # Stable: the rows of a topic keep their order.
    sent = sent.take(pc.array_sort_indices(coded.indices))
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(coded.indices).to_pylist()}
    start = 0
    for code in sorted(counts):
        yield names[code], sent.slice(start, counts[code])
        start += counts[code]
