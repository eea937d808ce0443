"""A mirror: consumers of groups at one or several clusters, and a producer that fills another one."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from pyspark_kafkalog.classic.consumer.stream import Blacklist, MessageStream, TopicFilter, Whitelist
from pyspark_kafkalog.classic.mirror.mirror_target import MirrorTarget, target_of
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.mirror import Mirroring
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.types import INTERNAL_TOPICS

_log = logging.getLogger(__name__)

_LAG_SECONDS = 5.0


class NotMirrored(KafkaError):
    """The target did not take messages: nothing of the sources is committed any more."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """What came from a source since the mirror was started; bytes are those of keys and values.

    ``lag`` counts bytes in 0.7, else offsets; None as long as it is not known.
    """

    name: str
    message_count: int
    byte_count: int
    partition_count: int
    lag: int | None


class Mirror:
    """*Thread-safe.* Copies topics from its sources to its target, at least once, until it is stopped.

    Every source is read by a `ConsumerConnector` with a thread for each stream. Whenever that is about to
    commit, in time or because partitions go to another mirror of the group, the target is waited for first,
    and nothing is committed when it did not take all. Owns connectors, target and threads.
    """

    def __init__(self, config: Mirroring, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Nothing is connected yet."""
        self._config, self._clock = config, clock
        self._target: MirrorTarget | None = None
        self._sources: list[_Source] = []
        self._lost_lock = threading.Lock()  # guards the three below
        self._lost_count = 0
        self._lost_error: KafkaError | None = None
        self._failure: KafkaError | None = None
        self._ended = threading.Event()
        self._lag_thread = threading.Thread(target=self._watch_lag, name="kafkalog-mirror-lag", daemon=True)
        self._stopped = False

    def start(self) -> Mirror:
        """Connect to the target and the sources, and begin.

        Raises:
            InvalidConfig: the filter is not a regular expression.
            ConnectionLost: one of the ZooKeepers does not answer.
        """
        chosen = topics_of(self._config)
        target = self._target = target_of(self._config, self._lost, clock=self._clock)
        try:
            for name, config in self._config.sources.items():
                connector = ConsumerConnector(config, before_commit=self._settle, clock=self._clock)
                source = _Source(name, connector)
                self._sources.append(source)
                streams = connector.create_message_streams_by_filter(chosen, self._config.mirror.num_streams)
                source.copiers = [_Copier(self, name, stream, target) for stream in streams]
        except BaseException:
            self._shut_down()
            raise
        for source in self._sources:
            for copier in source.copiers:
                copier.start()
        self._lag_thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it cannot go on, at most ``timeout`` seconds; whether that is so: `stop` tells why."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Read no more, wait for the target, commit, leave the groups. A second call does nothing.

        Raises:
            NotMirrored: the target did not take all; what was not committed comes again at the next start.
            KafkaError: a source could not be read on. What had been read of it is mirrored and committed.
        """
        if self._stopped:
            return
        self._stopped = True
        self._shut_down()
        self._check_lost()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def lost_count(self) -> int:
        """Messages that the target did not take."""
        return self._lost_count

    @property
    def aborted(self) -> bool:
        """Whether the target did not take a message, and is to be sent no more."""
        return self._lost_error is not None and self._config.mirror.abort_on_send_failure

    def progress(self) -> list[SourceProgress]:
        """How far it is, source by source. Cheap."""
        return [
            SourceProgress(
                source.name,
                sum(copier.message_count for copier in source.copiers),
                sum(copier.byte_count for copier in source.copiers),
                len(source.connector.owned),
                source.lag,
            )
            for source in self._sources
        ]

    def failed(self, error: KafkaError) -> None:
        """A source cannot be read on."""
        with self._lost_lock:
            self._failure = self._failure or error
        self._ended.set()

    def _lost(self, count: int, error: KafkaError) -> bool:
        """For the target: see `Lost`."""
        abort = self._config.mirror.abort_on_send_failure
        with self._lost_lock:
            first = self._lost_error is None
            self._lost_count += count
            self._lost_error = self._lost_error or error
        if abort:
            self._ended.set()
        if first or not abort:
            _log.error("%d message(s) did not get to the target: %s", count, error)
        return not abort

    def _settle(self) -> None:
        """Before a commit: what was handed to the target is there, or this raises `NotMirrored`."""
        target = self._target
        if target is None:
            raise InvalidRequest("the mirror has no target")
        self._check_lost()
        target.flush()
        self._check_lost()

    def _check_lost(self) -> None:
        if self.aborted:
            raise NotMirrored(
                f"the target did not take {self._lost_count} message(s), so nothing more is committed and a "
                f"new start begins before them: {self._lost_error}"
            )

    def _shut_down(self) -> None:
        """The target last: a connector commits when it ends, and waits for the target before."""
        self._ended.set()
        aborted = self.aborted
        if aborted and self._target is not None:
            # What was read after the messages that are lost must not get there before them.
            self._target.close(at_once=True)
        copiers = [copier for source in self._sources for copier in source.copiers]
        for copier in copiers:
            copier.end()
        if self._target is not None and not aborted:
            # Here, so that connectors have nothing to wait for while they leave.
            self._target.flush()
        if self._lag_thread.is_alive():
            self._lag_thread.join(_LAG_SECONDS)
        for source in self._sources:
            source.connector.shutdown()
        if self._target is not None:
            self._target.close(at_once=aborted)

    def _watch_lag(self) -> None:
        while not self._ended.is_set():
            for source in self._sources:
                try:
                    source.lag = sum(source.connector.lag().values())
                except KafkaError as e:
                    _log.debug("the lag of source %s is not known: %s", source.name, e)
                    source.lag = None
            self._ended.wait(_LAG_SECONDS)


class _Source:
    """A cluster that is read. `lag` is written by the thread that asks for it."""

    def __init__(self, name: str, connector: ConsumerConnector) -> None:
        self.name, self.connector = name, connector
        self.copiers: list[_Copier] = []
        self.lag: int | None = None


class _Copier:
    """One stream's way to the target. Its numbers are its thread's to write and anybody's to read."""

    def __init__(self, mirror: Mirror, source: str, stream: MessageStream, target: MirrorTarget) -> None:
        self.message_count = self.byte_count = 0
        self._mirror, self._source, self._stream, self._target = mirror, source, stream, target
        self._thread = threading.Thread(
            target=self._run, name=f"kafkalog-mirror-{source}-{stream.number}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Read no more, and return when what was read is handed over."""
        self._stream.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for message, where in self._stream:
                if self._mirror.aborted:
                    return
                self._target.send(self._source, where)
                self.message_count += 1
                self.byte_count += len(message) + len(where.record.key or b"")
        except KafkaError as e:
            self._mirror.failed(e)
        except Exception as e:
            _log.exception("mirroring source %s failed", self._source)
            self._mirror.failed(KafkaError(f"mirroring source {self._source} failed: {e!r}"))


def topics_of(config: Mirroring) -> TopicFilter:
    """The filter that a configuration asks for. Raises `InvalidConfig` for what is no regular expression."""
    mirror = config.mirror
    internal = "|".join(INTERNAL_TOPICS)
    if mirror.blacklist is not None:
        chosen: TopicFilter = Blacklist(mirror.blacklist.strip(" \"'"))
        return Blacklist(f"{chosen.expression},{internal}") if mirror.exclude_internal_topics else chosen
    # Blanks and quotes around an expression mean nothing, and would in the middle of one.
    chosen = Whitelist((mirror.whitelist or "").strip(" \"'"))
    if not mirror.exclude_internal_topics:
        return chosen
    return Whitelist(f"(?!({internal})$)({chosen.expression})")
