"""The leader epoch of every partition: one broker leads, so it never changes."""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.types import TopicPartition

LEADER_EPOCH = 0

_NOT_GIVEN = -1


def check_leader_epoch(partition: TopicPartition, epoch: int) -> None:
    """Refuse a client that knows of another leader than us; -1 is a client that does not say.

    Raises:
        ServerError: UNKNOWN_LEADER_EPOCH above ours, FENCED_LEADER_EPOCH below.
    """
    if epoch in (_NOT_GIVEN, LEADER_EPOCH):
        return
    code = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > LEADER_EPOCH else ErrorCode.FENCED_LEADER_EPOCH
    raise ServerError(code, f"{partition}: leader epoch {epoch}; the leader's is {LEADER_EPOCH}")
