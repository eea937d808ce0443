"""`Mirror`: group consumers at one or several clusters, and a producer for the target cluster."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from pyspark_kafkalog.classic.consumer.stream import Blacklist, MessageMetadata, TopicFilter, Whitelist
from pyspark_kafkalog.classic.mirror.mirror_source import LAG_SECONDS, MirrorSource, source_of
from pyspark_kafkalog.classic.mirror.mirror_target import MirrorTarget, target_of
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.mirror_config import Mirroring
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.types import INTERNAL_TOPICS

_log = logging.getLogger(__name__)


class NotMirrored(KafkaError):
    """Messages were not delivered to the target; the sources commit nothing more."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Read from a source since the start; bytes are those of keys and values.

    ``lag`` is in bytes in 0.7, else offsets; None if unknown.
    """

    name: str
    message_count: int
    byte_count: int
    partition_count: int
    lag: int | None


class Mirror:
    """*Thread-safe.* Copies topics from its sources to its target, at least once, until stopped.

    Each commit of a source, periodic or before partitions move, first waits for the target. If a message was
    not delivered, nothing is committed. Owns sources, target and threads.
    """

    def __init__(self, config: Mirroring, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config, self._clock = config, clock
        self._target: MirrorTarget | None = None
        self._sources: list[MirrorSource] = []
        self._lost_lock = threading.Lock()  # guards the three below
        self._lost_count = 0
        self._lost_error: KafkaError | None = None
        self._failure: KafkaError | None = None
        self._ended = threading.Event()
        self._lag_thread = threading.Thread(target=self._watch_lag, name="kafkalog-mirror-lag", daemon=True)
        self._stopped = False

    def start(self) -> Mirror:
        """Connects to the target and the sources, and starts the threads.

        Raises `InvalidConfig` for an invalid filter, `ConnectionLost` if a ZooKeeper does not answer.
        """
        chosen = topics_of(self._config)
        self._target = target_of(self._config, self._lost, clock=self._clock)
        try:
            for name, config in self._config.sources.items():
                streams = self._config.mirror.num_streams
                source = source_of(name, config, chosen, streams, self, clock=self._clock)
                self._sources.append(source)
                source.start()
        except BaseException:
            self._shut_down()
            raise
        self._lag_thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Waits up to ``timeout`` seconds; True if it has failed, then `stop` raises the error."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Stops reading, waits for the target, commits, leaves the groups. A second call does nothing.

        Raises:
            NotMirrored: messages were not delivered; the next start repeats what was not committed.
            KafkaError: a source cannot be read further; messages read before are mirrored and committed.
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
        return self._lost_count

    @property
    def aborted(self) -> bool:
        """Whether it stopped sending because a message was not delivered."""
        return self._lost_error is not None and self._config.mirror.abort_on_send_failure

    def progress(self) -> list[SourceProgress]:
        return [
            SourceProgress(
                source.name, source.message_count, source.byte_count, source.partition_count, source.lag
            )
            for source in self._sources
        ]

    def copy(self, source: str, where: MessageMetadata) -> None:
        """Called by a source: sends a message to the target."""
        self._begun().send(source, where)

    def settle(self) -> None:
        """Called by a source before it commits: waits for delivery. Raises `NotMirrored`."""
        self._check_lost()
        self._begun().flush()
        self._check_lost()

    def failed(self, error: KafkaError) -> None:
        """Called by a source that cannot be read further."""
        with self._lost_lock:
            self._failure = self._failure or error
        self._ended.set()

    def _lost(self, count: int, error: KafkaError) -> bool:
        """The target's `Lost` callback; returns whether to continue."""
        abort = self._config.mirror.abort_on_send_failure
        with self._lost_lock:
            first = self._lost_error is None
            self._lost_count += count
            self._lost_error = self._lost_error or error
        if abort:
            self._ended.set()
        if first or not abort:
            _log.error("%d message(s) were not delivered to the target: %s", count, error)
        return not abort

    def _begun(self) -> MirrorTarget:
        if self._target is None:
            raise InvalidRequest("the mirror has not been started")
        return self._target

    def _check_lost(self) -> None:
        if self.aborted:
            raise NotMirrored(
                f"{self._lost_count} message(s) were not delivered to the target; nothing more is committed, "
                f"and a restart begins before them: {self._lost_error}"
            )

    def _shut_down(self) -> None:
        """Closes the target last: sources commit when they end, and wait for the target first."""
        self._ended.set()
        aborted = self.aborted
        if aborted and self._target is not None:
            # Messages after a lost one must not be delivered.
            self._target.close(at_once=True)
        for source in self._sources:
            source.end_reading()
        if self._target is not None and not aborted:
            # Flush now, so that sources need not wait while they leave.
            self._target.flush()
        if self._lag_thread.is_alive():
            self._lag_thread.join(LAG_SECONDS)
        for source in self._sources:
            source.close()
        if self._target is not None:
            self._target.close(at_once=aborted)

    def _watch_lag(self) -> None:
        while not self._ended.is_set():
            for source in self._sources:
                try:
                    source.measure_lag()
                except KafkaError as e:
                    _log.debug("the lag of source %s is unknown: %s", source.name, e)
            self._ended.wait(LAG_SECONDS)


def topics_of(config: Mirroring) -> TopicFilter:
    """The topic filter of a configuration. Raises `InvalidConfig` for an invalid expression."""
    mirror = config.mirror
    internal = "|".join(INTERNAL_TOPICS)
    if mirror.blacklist is not None:
        chosen: TopicFilter = Blacklist(mirror.blacklist.strip(" \"'"))
        return Blacklist(f"{chosen.expression},{internal}") if mirror.exclude_internal_topics else chosen
    # Blanks and quotes around an expression are ignored; inside the combined one they would count.
    chosen = Whitelist((mirror.whitelist or "").strip(" \"'"))
    if not mirror.exclude_internal_topics:
        return chosen
    return Whitelist(f"(?!({internal})$)({chosen.expression})")
