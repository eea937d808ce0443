"""An append to a log of 0.8 onwards, which may hold v0, v1 and v2. Pure.

It is checked by the rules of the format that came, told in the one that the topic wants, numbered as that one
has it.
"""

from __future__ import annotations

from broker.config import LogConfig
from broker.log.set_validation import check_count, check_sets_in_steps, number_sets_in_steps
from broker.log.validation import (
    MAX_DECOMPRESSED_BYTES,
    CheckedBatch,
    assign_offsets,
    check_batches,
    check_batches_in_steps,
    opens_records,
)
from pyspark_kafkalog.errors import MessageTooLarge
from pyspark_kafkalog.formats.batch import MAGIC
from pyspark_kafkalog.formats.convert import PIECE_BYTES, Piece, for_topic_in_steps
from pyspark_kafkalog.formats.legacy import MAGIC_POSITION
from pyspark_kafkalog.formats.message_set import magic_at
from pyspark_kafkalog.steps import Steps, finished


def take_long(data: memoryview, config: LogConfig) -> bool:
    """Whether messages in ``data`` must be looked at one by one, or be decompressed: it is of v0 or v1, or is
    to become that, or it is a batch v2 that must be opened.
    """
    return (
        config.magic not in (None, MAGIC)
        or (len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != MAGIC)
        or opens_records(data, config)
    )


def check_entries(
    data: memoryview, config: LogConfig, now_ms: int, *, internal: bool
) -> tuple[memoryview, list[CheckedBatch]]:
    """`check_entries_in_steps`, all of them here and now. Raises the same."""
    magic = magic_at(data, 0) if len(data) else MAGIC
    if magic == MAGIC and (internal or config.magic in (None, MAGIC)):
        return data, check_batches(data, config, now_ms, internal=internal)
    return finished(check_entries_in_steps(data, config, now_ms, internal=internal))


def check_entries_in_steps(
    data: memoryview, config: LogConfig, now_ms: int, *, internal: bool
) -> Steps[tuple[memoryview, list[CheckedBatch]]]:
    """``data`` and the entries in it, or what was made of it for a topic that wants another format.

    What the broker itself appends (``internal``) stays as it is: it is read by the broker alone.

    Raises:
        KafkaError: as `check_batches` and `check_sets_in_steps`; or what comes cannot be told in the topic's
            format: ServerError UNSUPPORTED_FOR_MESSAGE_FORMAT for an idempotent producer's batch and for
            headers, UnsupportedCompression for zstd, MessageTooLarge for what becomes larger than is allowed
            or has too many messages to be converted one by one.
    """
    magic = magic_at(data, 0) if len(data) else MAGIC
    if magic == MAGIC:
        batches = yield from check_batches_in_steps(data, config, now_ms, internal=internal)
    else:
        batches = yield from check_sets_in_steps(data, config, now_ms, internal=internal)
    wanted = config.magic
    if wanted is None or wanted == magic or internal:
        return data, batches
    check_count(sum(batch.record_count for batch in batches))
    return (yield from _converted(data, wanted, config, now_ms))


def number_entries(
    data: memoryview, batches: list[CheckedBatch], base_offset: int, log_append_time_ms: int | None
) -> tuple[memoryview, list[CheckedBatch]]:
    """`number_entries_in_steps`, all of them here and now. Raises the same."""
    if batches[0].magic == MAGIC:
        return data, assign_offsets(data, batches, base_offset, log_append_time_ms)
    return finished(number_sets_in_steps(data, batches, base_offset, log_append_time_ms))


def number_entries_in_steps(
    data: memoryview, batches: list[CheckedBatch], base_offset: int, log_append_time_ms: int | None
) -> Steps[tuple[memoryview, list[CheckedBatch]]]:
    """Number the entries from ``base_offset`` on; record batches and v1 in place, v0 unless it is compressed.

    Raises:
        MessageTooLarge: as `number_sets_in_steps`.
    """
    if batches[0].magic == MAGIC:
        return data, assign_offsets(data, batches, base_offset, log_append_time_ms)
    return (yield from number_sets_in_steps(data, batches, base_offset, log_append_time_ms))


def _converted(
    data: memoryview, magic: int, config: LogConfig, now_ms: int
) -> Steps[tuple[memoryview, list[CheckedBatch]]]:
    """What was checked, in format ``magic``; it is checked again, for what numbering wants to know."""
    largest = config.max_message_bytes
    piece_bytes = max(1, min(PIECE_BYTES, largest))
    joined = bytearray()  # which can be written: numbering changes it in place

    def take(piece: Piece) -> None:
        joined.extend(piece.data)

    yield from for_topic_in_steps(
        data, magic, take, max_bytes=MAX_DECOMPRESSED_BYTES, piece_bytes=piece_bytes
    )
    made = memoryview(joined)
    if magic == MAGIC:
        checked = check_batches(made, config, now_ms, internal=True)
    else:
        checked = yield from check_sets_in_steps(made, config, now_ms, internal=True)
    batches = [
        batch._replace(
            rewritten=True,
            inner=None if batch.inner is None else batch.inner._replace(largest=largest),
        )
        for batch in checked
    ]
    for batch in batches:
        if batch.size > largest:
            raise MessageTooLarge(
                f"in message format v{magic} it has {batch.size} bytes; max.message.bytes is {largest}"
            )
    return made, batches
