"""The coordinator over real logs, killed at any write, with a clock of the test's.

After each kill another one starts from what is on the disk. What was answered is as it was answered; a
transaction is seen as a whole, in all its partitions and in the group's offsets, or not at all; what is open
in the logs is open or prepared at the coordinator; and the last stable offset never falls.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from kafkalog_broker.disk.filesystem import Data, File, FileSystem
from kafkalog_broker.groups.consumer_group import ConsumerGroupSettings
from kafkalog_broker.groups.group import GroupTopic
from kafkalog_broker.groups.group_coordinator import GroupCoordinator, GroupSettings
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, CommittedOffset
from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.transactions.markers import Markers
from kafkalog_broker.transactions.producer_ids import ProducerIds
from kafkalog_broker.transactions.states import PREPARED, CoordinatorState, Transaction
from kafkalog_broker.transactions.transaction_coordinator import TransactionCoordinator, transaction_topic
from pyspark_kafkalog.errors import ConcurrentTransactions, KafkaError
from pyspark_kafkalog.types import TopicPartition
from tests.support.examples import seeds
from tests.support.log.committed import committed
from tests.support.log.faulty_files import PowerCut, VolatileFiles
from tests.support.log.logs import START_MS, batch, crash, crash_all, open_manager
from tests.support.manual_clock import ManualClock

IDS = ("x", "y")
DATA = tuple(TopicPartition("t", number) for number in range(3))
TIMEOUT_MS = 60_000


class Killed(BaseException):
    """The process ends here."""


class KillingFiles(FileSystem):
    """A disk whose user is killed at a write to a segment, before it or after it."""

    def __init__(self) -> None:
        self.writes_left: int | None = None
        self.after = False

    def open(self, path: Path, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return _KillingFile(self, file) if path.suffix == ".kafka" else file


class _KillingFile:
    def __init__(self, files: KillingFiles, file: File) -> None:
        self._files = files
        self._file = file

    def write_at(self, position: int, data: Data) -> int:
        files = self._files
        if files.writes_left is None:
            return self._file.write_at(position, data)
        files.writes_left -= 1
        if files.writes_left < 0:
            if files.after:
                self._file.write_at(position, data)
            raise Killed
        return self._file.write_at(position, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


@dataclass
class Attempt:
    """One transaction as its client knows it; ``committed`` is None where the answer never came."""

    name: str
    values: list[tuple[TopicPartition, bytes]] = field(default_factory=list)
    maybe: list[tuple[TopicPartition, bytes]] = field(default_factory=list)
    offset: int | None = None
    committed: bool | None = False


@dataclass
class Client:
    """A producer with its id."""

    producer: tuple[int, int] = (-1, -1)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    open: Attempt | None = None


class World:
    """A broker's disk and its coordinators, and what clients know of it."""

    def __init__(self, path: Path, files: FileSystem, *, flush: bool = False) -> None:
        self.path = path
        self.clock = ManualClock(START_MS)
        self.files = files
        self.flush = flush
        self.clients = {name: Client() for name in IDS}
        self.attempts: list[Attempt] = []
        self.stable: dict[TopicPartition, int] = {}
        self.start()
        for topic, count in (("t", len(DATA)), (OFFSETS_TOPIC, 1), (TRANSACTIONS_TOPIC, 2)):
            self.manager.create_topic(topic, uuid.uuid4(), count, {})
        self.restart()

    def start(self) -> None:
        self.manager: LogManager = open_manager(
            self.path, clock=self.clock, files=self.files, segment_bytes=2000
        )
        self.groups = GroupCoordinator(
            GroupTopic(self.manager, create=lambda: 1, appended=lambda _p, _s: None),
            self.clock,
            Scheduler(self.clock),
            GroupSettings(1, 1 << 30, 0, 10, 1 << 40),
            ConsumerGroupSettings(),
            topics=lambda: self.manager.topics,
        )
        ids = ProducerIds([self.path], self.files, run=lambda work: work())
        ids.reserve()
        self.coordinator = TransactionCoordinator(
            self.manager,
            self.clock,
            ids,
            transaction_topic(self.manager, create=lambda: 2, appended=lambda _p, _s: None),
            Markers(
                self.manager,
                lambda _seconds, task: task(),
                flush=self.flush,
                end_offsets=self.groups.offsets.end_transaction,
                ended=lambda _p, _s: None,
            ),
            max_timeout_ms=TIMEOUT_MS,
            expiration_ms=1 << 40,
        )
        self.groups.look()
        self.coordinator.start()

    def restart(self, *, kill: bool = True) -> None:
        if not kill:
            self.manager.close()
        crash(self.manager)
        self.start()
        self.groups.load()
        self.coordinator.load()

    def log(self, partition: TopicPartition) -> Log:
        return self.manager.log(partition)

    def known(self) -> dict[str, Transaction]:
        return {each.transactional_id: each for each in self.coordinator.all()}

    def step(self, what: str, name: str, number: int) -> None:
        client = self.clients[name]
        if what == "stop":
            self.restart(kill=False)
        elif what == "wait":
            self.clock.advance(number * 20)
            self.coordinator.end_overdue()
        elif what == "begin":
            self.begin(name, client)
        elif what in ("commit", "abort"):
            if client.open is not None:
                self.end(name, client, commit=what == "commit")
            return
        elif client.open is None:
            self.begin(name, client)
        if what == "send":
            for partition in (number, number + 1):
                self.send(name, client, DATA[partition % len(DATA)])
        elif what == "offset":
            assert client.open is not None
            partition = self.groups.partition_of(name)
            self.coordinator.add(name, *client.producer, [partition])
            with self.coordinator.writing(name, *client.producer, partition):
                position = len(self.attempts)
                client.open.maybe.append((DATA[0], b"an offset"))
                self.groups.offsets.commit(
                    name, {DATA[0]: CommittedOffset(position)}, producer=client.producer
                )
                client.open.maybe.pop()
                client.open.offset = position

    def begin(self, name: str, client: Client) -> None:
        client.open = None
        try:
            client.producer = self.coordinator.initialize(name, TIMEOUT_MS, None)
        except ConcurrentTransactions:
            client.producer = self.coordinator.initialize(name, TIMEOUT_MS, None)
        client.sequences = {}
        client.open = Attempt(f"{name}{len(self.attempts)}")
        self.attempts.append(client.open)

    def send(self, name: str, client: Client, partition: TopicPartition) -> None:
        attempt = client.open
        assert attempt is not None
        value = f"{attempt.name}-{len(attempt.values)}".encode()
        self.coordinator.add(name, *client.producer, [partition])
        sequence = client.sequences.get(partition, 0)
        data = batch(
            value, transactional=True, producer_id=client.producer[0], producer_epoch=client.producer[1],
            base_sequence=sequence,
        )  # fmt: skip
        attempt.maybe.append((partition, value))
        self.log(partition).append(data, guard=self.coordinator.writing(name, *client.producer, partition))
        attempt.maybe.pop()
        attempt.values.append((partition, value))
        client.sequences[partition] = sequence + 1

    def end(self, name: str, client: Client, *, commit: bool) -> None:
        attempt = client.open
        assert attempt is not None
        client.open = None
        commit = commit and not attempt.maybe  # what may be missing is not committed
        before = attempt.committed
        attempt.committed = None if commit else False
        try:
            own_epochs = name == IDS[0]  # as clients of version 2 have it
            self.coordinator.end(name, *client.producer, commit=commit, own_epochs=own_epochs).run()
        except KafkaError:
            attempt.committed = before  # refused: nothing was decided
        else:
            attempt.committed = commit

    def check(self) -> None:
        """What must hold at any time when nobody is at work."""
        known = self.known()
        held = {
            (partition, each.producer_id)
            for each in known.values()
            if each.state is CoordinatorState.ONGOING or each.state in PREPARED
            for partition in each.partitions
        }
        found = {(partition, each.producer_id) for partition, each in self.manager.open_transactions()}
        assert found <= held
        for name, client in self.clients.items():
            if client.producer[0] >= 0:
                assert known[name].producer_id == client.producer[0]
                assert known[name].epoch >= client.producer[1]
        for partition in DATA:
            stable = self.log(partition).last_stable_offset
            assert stable >= self.stable.get(partition, 0)
            self.stable[partition] = stable

    def finish(self) -> None:
        """All that is open runs into its time-out; then what readers see is compared with the answers."""
        self.clock.advance(TIMEOUT_MS)
        self.coordinator.end_overdue()
        assert self.manager.open_transactions() == []
        seen = {(partition, value) for partition in DATA for value in committed(self.log(partition))}
        for name in IDS:
            stored = self.groups.offsets.fetch(name).get(DATA[0])
            last = None
            for attempt in self.attempts:
                if attempt.name[0] != name:
                    continue
                visible = [each for each in attempt.values if each in seen]
                assert visible in ([], attempt.values), attempt
                is_committed = attempt.committed
                if is_committed is None:
                    is_committed = bool(visible) or (
                        not attempt.values and stored is not None and stored.offset == attempt.offset
                    )
                assert visible == (attempt.values if is_committed else []), attempt
                assert is_committed or not set(attempt.maybe) & seen
                if is_committed and attempt.offset is not None:
                    last = attempt.offset
            assert (stored.offset if stored is not None else None) == last


def stored(known: Transaction) -> Transaction:
    """Without what is not in its record."""
    return replace(known, last_epoch=-1, last_producer_id=-1)


STEPS = ("begin", "send", "send", "send", "offset", "commit", "commit", "abort", "wait", "stop")


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that is gone after the test: there are hundreds of them."""
    path = Path(tempfile.mkdtemp())
    yield path
    crash_all()
    shutil.rmtree(path)


def choose(rng: random.Random) -> tuple[str, str, int]:
    return rng.choice(STEPS), rng.choice(IDS), rng.randrange(5)


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_transactions_are_whole_wherever_the_broker_is_killed(root: Path, seed: int) -> None:
    rng, files = random.Random(seed), KillingFiles()
    world = World(root, files)
    for _ in range(20):
        what, name, number = choose(rng)
        if what != "stop" and rng.random() < 0.35:
            files.writes_left, files.after = rng.randrange(6), rng.random() < 0.5
        try:
            world.step(what, name, number)
        except KafkaError:
            world.clients[name].open = None  # timed out: the client would begin again
        except Killed:
            files.writes_left = None
            world.restart()
        files.writes_left = None
        world.check()
    if seed % 2:  # else what is in memory is compared
        before = world.known()
        world.restart()
        assert {each: stored(found) for each, found in world.known().items()} == {
            each: stored(found) for each, found in before.items()
        }
    world.finish()


@pytest.mark.parametrize("seed", seeds(12, 40))
def test_with_a_flush_before_the_markers_not_even_a_power_cut_leaves_half_of_one(
    root: Path, seed: int
) -> None:
    rng, disk = random.Random(seed), root / "disk"
    disk.mkdir()
    files = VolatileFiles(disk)
    world = World(disk, files, flush=True)
    for _ in range(rng.randrange(3, 12)):
        what, name, number = choose(rng)
        with suppress(KafkaError):
            world.step(what if what != "stop" else "send", name, number)
    files.stop_after = rng.randrange(12)
    with suppress(KafkaError, PowerCut):
        for _ in range(20):
            what, name, number = choose(rng)
            world.step(what if what != "stop" else "commit", name, number)
    crash(world.manager)
    files.power_cut(root / "after", rng)
    world.path, world.files = root / "after", FileSystem()
    world.restart()
    # Whoever comes next is not taken for one of before.
    for name, client in world.clients.items():
        world.begin(name, client)
        world.send(name, client, DATA[0])
        world.end(name, client, commit=True)
    world.finish()
