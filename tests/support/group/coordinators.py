"""Group coordinators over a log manager, without a broker."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.groups.consumer_group import ConsumerGroupSettings
from kafkalog_broker.groups.group import GroupTopic
from kafkalog_broker.groups.group_coordinator import GroupCoordinator, GroupSettings
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC
from kafkalog_broker.logs.state_topic import Placement
from kafkalog_broker.scheduler import Scheduler
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.faulty_files import FaultyFiles
from tests.support.manual_clock import ManualClock

RETENTION = 60.0
"""Seconds that offsets are kept."""


class Coordinators:
    """One after the other over one log manager, and a timer that runs when it is told to."""

    def __init__(
        self,
        directory: Path,
        *,
        partitions: int = 1,
        segment_bytes: int = 1 << 30,
        initial_delay_ms: int = 0,
        placement: Placement | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self.clock, self.files = ManualClock(), FaultyFiles()
        self.partitions, self.placement = partitions, placement
        self.settings = GroupSettings(6_000, 1_800_000, initial_delay_ms, 100, int(RETENTION * 1000))
        self.appended: list[tuple[TopicPartition, int]] = []
        self.created = 0
        self.logs = LogManager(
            [directory],
            defaults=LogConfig(segment_bytes=segment_bytes),
            clock=self.clock,
            files=files or self.files,
            producer_expiration_ms=1000,
        )
        self.logs.start()

    def create(self, name: str = OFFSETS_TOPIC) -> int:
        self.created += 1
        self.logs.create_topic(name, uuid4(), self.partitions, {"cleanup.policy": "compact"})
        return self.partitions

    def restart(self, *, load: bool = True) -> GroupCoordinator:
        """As a broker that starts now has it."""
        self.timer = Scheduler(self.clock)
        self.groups = GroupCoordinator(
            GroupTopic(
                self.logs,
                create=self.create,
                appended=lambda partition, size: self.appended.append((partition, size)),
                placement=self.placement,
            ),
            self.clock,
            self.timer,
            self.settings,
            ConsumerGroupSettings(),
            topics=lambda: self.logs.topics,
        )
        self.groups.look()
        if load:
            self.groups.load()
        return self.groups

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.run_due()

    def log_end(self, partition: int = 0) -> int:
        return self.logs.log(TopicPartition(OFFSETS_TOPIC, partition)).end_offset

    def close(self) -> None:
        self.files.space_bytes = None
        self.logs.close()
