"""SIGKILL of a mirror in the middle: every message is at the target, in order but for those twice there."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.formats.compression import Codec
from tests.support.classic.mirroring import BROKER, Side, start_mirror
from tests.support.until import until
from tests.support.zookeeper import expire_owner, patient_session

PARTITIONS = 2
SETS, PER_SET = 60, 20
LONG_SESSIONS = {"zookeeper.session.timeout.ms": 60_000}
MEMBERS = {"0.7": "/consumers/mirror/ids", "0.8": "/kafka/consumers/mirror/ids"}


def end_sessions(source_at: str, of: str) -> None:
    """Those of a mirror that was killed: what it owned is free again."""
    with patient_session(source_at) as session:
        members = session.children(MEMBERS[of])
    assert members
    for member in members:
        expire_owner(source_at, f"{MEMBERS[of]}/{member}")


def write_all(here: Side, partition: int, rng: random.Random, killed: threading.Event) -> None:
    """All sets of a partition, the last one after the kill: so it comes in the middle on any machine."""
    with here.producer() as producer:
        for number in range(SETS):
            if number == SETS - 1:
                killed.wait(120)
            payloads = [b"%d:%06d" % (partition, number * PER_SET + place) for place in range(PER_SET)]
            producer.send("t", payloads, partition, rng.choice((Codec.NONE, Codec.GZIP)))


@pytest.mark.long("brokers that are killed many times")
@pytest.mark.parametrize(("of", "to", "seed"), [("0.7", "0.8", 1), ("0.8", "0.7", 2)])
def test_after_a_kill_nothing_is_missing_and_the_order_is_that_of_each_source_partition(
    zookeeper_connect: str, tmp_path: Path, of: str, to: str, seed: int
) -> None:
    rng = random.Random(seed)
    source_at, target_at = f"{zookeeper_connect}/source", f"{zookeeper_connect}/target"
    with (
        start_broker(
            BROKER | LONG_SESSIONS | {"num.partitions": PARTITIONS, "zookeeper.connect": source_at}
        ) as one,
        start_broker(BROKER | LONG_SESSIONS | {"zookeeper.connect": target_at}) as other,
    ):
        here, there = Side(one, source_at, of), Side(other, target_at, to)
        properties = (
            {"sources": "main", "whitelist": "t", "num.streams": 2, "offset.commit.interval.ms": 100},
            here.as_source("main", **LONG_SESSIONS),
            there.as_target(**({"batch.size": 50} if to == "0.7" else {"linger.ms": 0})),
        )
        killed = threading.Event()
        writers = [
            threading.Thread(
                target=write_all, args=(here, partition, random.Random(f"{seed} {partition}"), killed)
            )
            for partition in range(PARTITIONS)
        ]
        mirror = start_mirror(tmp_path, *properties)
        for writer in writers:
            writer.start()
        some = rng.randrange(100, SETS * PER_SET)
        until(lambda: len(there.values("t")) > some)
        mirror.kill()
        mirror.communicate()
        end_sessions(source_at, of)
        at_the_kill = len(there.values("t"))
        killed.set()
        mirror = start_mirror(tmp_path, *properties)
        try:
            for writer in writers:
                writer.join()
            total = PARTITIONS * SETS * PER_SET
            assert at_the_kill < total, "it was killed in the middle"
            until(lambda: len(set(there.values("t"))) == total or mirror.poll() is not None)
        finally:
            mirror.terminate()
            _, err = mirror.communicate(timeout=120)
        assert mirror.returncode == 0, err
        found = there.values("t")
        assert len(set(found)) == total
        for partition in range(PARTITIONS):
            own = [value for value in found if value.startswith(b"%d:" % partition)]
            assert list(dict.fromkeys(own)) == sorted(set(own))
        assert len(found) - total <= at_the_kill, "no more comes again than was there"
