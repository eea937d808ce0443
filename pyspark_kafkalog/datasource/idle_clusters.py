"""Connections that wait for the next task of a Python worker, which Spark uses again and again."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from typing import NamedTuple

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client import ClientConfig

CAPACITY = 16
"""Clusters kept at once; the one that waits longest goes first."""
KEPT_SECONDS = 60.0
"""How long one waits: shorter than brokers keep idle connections (``connections.max.idle.ms``, 10 min)."""


class _Idle(NamedTuple):
    cluster: Cluster
    since: float


class IdleClusters:
    """*Thread-safe.* Each cluster is handed out once: while it is used it is not here.

    They are told apart by all properties of the client, so other addresses or credentials are another
    connection. What has failed is not given back; a process that was forked begins with none, for a
    connection cannot have two owners.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: deque[_Idle] = deque()
        self._process = os.getpid()

    def take(self, config: ClientConfig) -> Cluster:
        """A cluster with these properties: the one used last, or a new one."""
        with self._lock:
            self._drop_old()
            found = next((idle for idle in reversed(self._idle) if idle.cluster.config == config), None)
            if found is None:
                return Cluster(config, clock=self._clock)
            self._idle.remove(found)
        found.cluster.drop_lost()
        return found.cluster

    def give_back(self, cluster: Cluster) -> None:
        """Keep ``cluster``, with which all went well and of which nothing is awaited, for the next `take`."""
        with self._lock:
            self._drop_old()
            self._idle.append(_Idle(cluster, self._clock.monotonic()))
            while len(self._idle) > CAPACITY:
                self._idle.popleft().cluster.close()

    def clear(self) -> None:
        """Close all of them."""
        with self._lock:
            while self._idle:
                self._idle.popleft().cluster.close()

    def _drop_old(self) -> None:
        if self._process != os.getpid():
            # They are the parent's: closing ours would be well, but they are not ours to use or to end.
            self._idle.clear()
            self._process = os.getpid()
        oldest = self._clock.monotonic() - KEPT_SECONDS
        while self._idle and self._idle[0].since < oldest:
            self._idle.popleft().cluster.close()


IDLE_CLUSTERS = IdleClusters()
"""Those of this process."""
atexit.register(IDLE_CLUSTERS.clear)
