"""A round of the loads' fault driver whose ledger, and perhaps its table, is in an object store or in HDFS.

Drivers reach the object store through a `Gate`, whose weather is never fair: answers are lost after the
request was done, requests are refused with what S3 says when it is busy or two writes meet, and some take a
second.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.support.foreign.mini_hdfs import MiniHdfs
from tests.support.ledger.s3_server import BUCKET, CONDITIONS, Gate
from tests.support.loads.load_rounds import LoadRound
from tests.support.loads.spark_driver import DRIVER_POINTS

DRIZZLE = {"lost": 0.01, "late 500": 0.01, "500": 0.01, "503": 0.01, "429": 0.01, "slow": 0.01, "cut": 0.01}
"""Share of the requests."""

CONFLICTS = {"409": 0.05, "late 409": 0.02, "412": 0.02}
"""Share of the writes with a condition, in addition."""

FOR_HADOOP = {"lost": 0.001, "500": 0.002, "503": 0.002, "slow": 0.002}
"""Instead, for Hadoop's client: it sends many more requests, and waits for seconds over a lost answer."""

_AWAY_SECONDS = (0.5, 3.0)
_OF_LOCAL_STORES = ("written beside", "linked", "sql")


def _of(headers: Mapping[str, str]) -> dict[str, float]:
    """The shares for a request with these headers."""
    if "object_store" not in headers.get("user-agent", ""):  # obstore's
        return FOR_HADOOP
    return DRIZZLE | (CONFLICTS if any(name in headers for name in CONDITIONS) else {})


class Weather:
    """*Thread-safe under the gate's lock.* What befalls each request, drawn from a seed; and how often."""

    def __init__(self, seed: object) -> None:
        self.struck = Counter[str]()
        self.away = False
        self._rng = random.Random(f"weather {seed}")

    def __call__(self, headers: Mapping[str, str]) -> str:
        if self.away:
            self.struck["away"] += 1
            return "away"
        left = self._rng.random()
        for fault, share in _of(headers).items():
            left -= share
            if left < 0:
                self.struck[fault] += 1
                return fault
        return ""


@dataclass
class StoreRound(LoadRound):
    """A round below ``root``, a URL; ``table_at`` may be another place."""

    root: str = ""
    table_at: str | None = None
    session: Mapping[str, str] = field(default_factory=dict)
    """Keys of Spark's by which drivers reach the store, where they were not started with them."""

    driver_points: ClassVar = tuple(
        point for point in DRIVER_POINTS if not any(other in point for other in _OF_LOCAL_STORES)
    )

    @property
    def offsets(self) -> str:
        return f"{self.root}/{self.topic.name}/offsets"

    @property
    def path(self) -> str:
        return self.table_at or f"{self.root}/{self.topic.name}/table"

    def go_away(self) -> None:
        """The store takes no connections any more."""
        raise NotImplementedError

    def come_back(self) -> None:
        """The store is there again, with all it had."""
        raise NotImplementedError

    def store_away(self) -> None:
        """The store is away for a while, in the middle of a load."""
        seconds = self.rng.uniform(*_AWAY_SECONDS)

        def away() -> None:
            self.go_away()
            time.sleep(seconds)
            self.come_back()

        self._with_fault("row", "wait", rows=self.rng.randrange(1, 300), may_fail=True, then=away)
        self.struck["store away"] += 1

    def order(self, on_pending: str = "replay") -> dict[str, Any]:
        return super().order(on_pending) | {"session": dict(self.session)}


@dataclass
class BucketRound(StoreRound):
    """A round in the server behind ``gate``, in S3's API or another one."""

    root: str = f"s3a://{BUCKET}"
    gate: Gate | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.gate is not None
        self.gate.weather = self.weather = Weather(self.seed)

    def go_away(self) -> None:
        self.weather.away = True

    def come_back(self) -> None:
        self.weather.away = False

    def finish(self) -> None:
        super().finish()
        self.note(f"weather: {dict(self.weather.struck)}")


@dataclass
class HdfsRound(StoreRound):
    """A round in an HDFS of its own, whose NameNode and DataNode are killed."""

    hdfs: MiniHdfs | None = None

    def __post_init__(self) -> None:
        assert self.hdfs is not None
        self.root = self.hdfs.url
        super().__post_init__()

    def go_away(self) -> None:
        assert self.hdfs is not None
        self.hdfs.kill()

    def come_back(self) -> None:
        assert self.hdfs is not None
        self.hdfs.start()
