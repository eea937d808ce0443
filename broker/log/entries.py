"""An append to a log of 0.8 onwards, which may hold v0, v1 and v2. Pure.

It is checked by the rules of the format that came, told in the one that the topic wants, numbered as that one
has it.
"""

from __future__ import annotations

from broker.config import LogConfig
from broker.log.set_validation import check_count, check_sets, number_sets
from broker.log.validation import MAX_DECOMPRESSED_BYTES, CheckedBatch, assign_offsets, check_batches
from pyspark_kafkalog.errors import MessageTooLarge
from pyspark_kafkalog.formats.batch import MAGIC
from pyspark_kafkalog.formats.convert_sets import PIECE_BYTES, for_topic
from pyspark_kafkalog.formats.message_set import magic_at


def check_entries(
    data: memoryview, config: LogConfig, now_ms: int, *, internal: bool
) -> tuple[memoryview, list[CheckedBatch]]:
    """``data`` and the entries in it, or what was made of it for a topic that wants another format.

    What the broker itself appends (``internal``) stays as it is: it is read by the broker alone.

    Raises:
        KafkaError: as `check_batches` and `check_sets`; or what comes cannot be told in the topic's format:
            ServerError UNSUPPORTED_FOR_MESSAGE_FORMAT for an idempotent producer's batch and for headers,
            UnsupportedCompression for zstd, MessageTooLarge for what becomes larger than is allowed or has
            too many messages to be converted one by one.
    """
    magic = magic_at(data, 0) if len(data) else MAGIC
    check = check_batches if magic == MAGIC else check_sets
    batches = check(data, config, now_ms, internal=internal)
    wanted = config.magic
    if wanted is None or wanted == magic or internal:
        return data, batches
    check_count(sum(batch.record_count for batch in batches))
    return _converted(data, wanted, config, now_ms)


def number_entries(
    data: memoryview, batches: list[CheckedBatch], base_offset: int, log_append_time_ms: int | None
) -> tuple[memoryview, list[CheckedBatch]]:
    """Number the entries from ``base_offset`` on; record batches and v1 in place, v0 unless it is compressed.

    Raises:
        MessageTooLarge: as `number_sets`.
    """
    if batches[0].magic == MAGIC:
        return data, assign_offsets(data, batches, base_offset, log_append_time_ms)
    return number_sets(data, batches, base_offset, log_append_time_ms)


def _converted(
    data: memoryview, magic: int, config: LogConfig, now_ms: int
) -> tuple[memoryview, list[CheckedBatch]]:
    """What was checked, in format ``magic``; it is checked again, for what numbering wants to know."""
    largest = config.max_message_bytes
    piece_bytes = max(1, min(PIECE_BYTES, largest))
    pieces = for_topic(data, magic, max_bytes=MAX_DECOMPRESSED_BYTES, piece_bytes=piece_bytes)
    # Bytes that can be written: numbering changes them in place.
    made = memoryview(bytearray().join(piece.data for piece in pieces))
    check = check_batches if magic == MAGIC else check_sets
    batches = [
        batch._replace(
            rewritten=True,
            inner=None if batch.inner is None else batch.inner._replace(largest=largest),
        )
        for batch in check(made, config, now_ms, internal=True)
    ]
    for batch in batches:
        if batch.size > largest:
            raise MessageTooLarge(
                f"in message format v{magic} it has {batch.size} bytes; max.message.bytes is {largest}"
            )
    return made, batches
