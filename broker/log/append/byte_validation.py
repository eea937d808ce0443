"""What an append to a log of 0.7 must be before anything of it is written. Pure.

The rules are those of 0.7.2's broker: ``server/KafkaRequestHandlers.scala``, ``log/Log.scala``. A size is
refused before anything else is looked at; then each message, inner ones too, must be readable.
"""

from __future__ import annotations

from broker.config import LogConfig
from broker.log.family import MAX_DECOMPRESSED_BYTES, Checked, CheckedBatch
from pyspark_kafkalog.formats.v07 import check_produced_in_steps
from pyspark_kafkalog.steps import Steps, run_steps
from pyspark_kafkalog.types import NO_TIMESTAMP


def check_messages(data: memoryview, config: LogConfig, now_ms: int, internal: bool) -> Checked:
    """`check_messages_in_steps`, all of them here and now. Raises the same."""
    return run_steps(check_messages_in_steps(data, config, now_ms, internal=internal))


def check_messages_in_steps(
    data: memoryview,
    config: LogConfig,
    now_ms: int,  # noqa: ARG001 - these messages have no time
    internal: bool,
) -> Steps[Checked]:
    """The whole entries of ``data``, as one batch; an incomplete one at the end is left out.

    No entry at all is allowed, and so is one without messages in it. ``internal`` lifts the limit on size.
    """
    found = yield from check_produced_in_steps(
        data,
        max_message_bytes=len(data) if internal else config.max_message_bytes,
        max_bytes=MAX_DECOMPRESSED_BYTES,
    )
    batch = CheckedBatch(found.size, found.message_count, found.size, NO_TIMESTAMP, None)
    return data[: found.size], [batch]


def leave_as_they_are(
    data: memoryview, batches: list[CheckedBatch], _base_offset: int, _log_append_time_ms: int | None, /
) -> Checked:
    """Messages of 0.7 hold neither an offset nor a time: their bytes stay those of their producer."""
    return data, batches


def leave_as_they_are_in_steps(
    data: memoryview, batches: list[CheckedBatch], _base_offset: int, _log_append_time_ms: int | None, /
) -> Steps[Checked]:
    """The same."""
    yield from ()
    return data, batches
