from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

from kafkalog_broker.groups.group_coordinator import Description
from kafkalog_broker.logs.offset_records import CommittedOffset
from kafkalog_broker.server.handlers.group_offsets import offset_fetch
from kafkalog_broker.server.handlers.groups import describe_groups, list_groups
from pyspark_kafkalog.errors import CoordinatorLoading, ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from pyspark_kafkalog.protocol.api.groups import DescribeGroupsRequest, ListGroupsRequest
from pyspark_kafkalog.types import TopicPartition


class StillLoading:
    """The groups of a broker that has just started."""

    def groups(self) -> NoReturn:
        raise CoordinatorLoading("not yet")

    def describe(self, group: str) -> Description:
        if group == "loaded":
            return Description(group, "Empty", "classic", "")
        raise CoordinatorLoading("not yet")


class Asked:
    """The context of one request."""

    def __init__(self) -> None:
        self.services: Any = SimpleNamespace(groups=StillLoading())

    def demand(self, *_: Any) -> None:
        """Everybody may do everything."""

    denied = demand

    def check_size(self) -> None:
        """No request is too large."""

    def refused(self, error: KafkaError) -> ErrorCode:
        return error.code


def test_groups_that_are_still_being_read_are_answered_with_error_14_and_fail_no_others() -> None:
    context: Any = Asked()
    listed = list_groups(ListGroupsRequest(), context)
    assert (listed.error_code, listed.groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
    loading, loaded = describe_groups(DescribeGroupsRequest(("loading", "loaded")), context).groups
    assert (loading.error_code, loading.group_id, loading.group_state) == (14, "loading", "Dead")
    assert (loaded.error_code, loaded.group_id, loaded.group_state) == (0, "loaded", "Empty")


def test_a_group_is_looked_up_once_however_many_partitions_the_oldest_version_asks_for() -> None:
    stored = {TopicPartition("t", p): CommittedOffset(p) for p in range(100)}
    asked: list[str] = []

    def fetch(group: str) -> dict[TopicPartition, CommittedOffset]:
        asked.append(group)
        return dict(stored)

    context: Any = Asked()
    context.version = 0
    context.services = SimpleNamespace(
        groups=SimpleNamespace(offsets=SimpleNamespace(fetch=fetch)),
        logs=SimpleNamespace(check_exists=lambda _: None),
        zookeeper_offsets=None,
    )
    wanted = OffsetFetchRequest(group_id="g", topics=(OffsetFetchRequestTopic("t", tuple(range(101))),))
    (topic,) = offset_fetch(wanted, context).topics
    assert [p.committed_offset for p in topic.partitions] == [*range(100), -1]
    assert asked == ["g"]
