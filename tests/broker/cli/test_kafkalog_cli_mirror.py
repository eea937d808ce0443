"""``kafkalog mirror`` as its users start it, against real brokers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import V07Layout
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.classic.mirroring import BROKER, Side, start_mirror
from tests.support.command_line import SECONDS, kafkalog
from tests.support.until import until

pytestmark = pytest.mark.long("dozens of commands")


@pytest.fixture(scope="module")
def chroot(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.connect}/cli-mirror"


@pytest.fixture(scope="module")
def sides(chroot: str) -> Iterator[tuple[Side, Side]]:
    """One broker is enough: what it holds of 0.7 under one topic goes to today's wire under the same name."""
    with (
        start_broker(BROKER | {"zookeeper.connect": chroot}) as here,
        start_broker(BROKER) as there,
    ):
        yield Side(here, chroot, "0.7"), Side(there, "", "0.8")


def test_a_signal_ends_it_when_all_is_at_the_target_and_committed(
    sides: tuple[Side, Side], tmp_path: Path, chroot: str
) -> None:
    here, there = sides
    here.write("t", [b"1", b"22"])
    own = {"sources": "main", "whitelist": "t", "offset.commit.interval.ms": 600_000}
    with start_mirror(tmp_path, own, here.as_source("main"), there.as_target()) as mirror:
        try:
            until(lambda: there.values("t") == [b"1", b"22"] or mirror.poll() is not None)
            mirror.send_signal(signal.SIGTERM)
            out, err = mirror.communicate(timeout=SECONDS)
        finally:
            mirror.kill()
    assert (mirror.returncode, out) == (0, ""), err
    first, *rates, last = err.splitlines()
    assert (first, last) == ("mirroring main", "read 2 messages, 3 bytes")
    assert all(" messages/s; main: " in rate for rate in rates), err  # one after ten seconds
    with ZooKeeperSession(chroot) as session:
        assert registries.group_offsets(session, V07Layout(), "mirror", "t") == {"1-0": 23}


def test_a_target_that_is_not_there_ends_it_without_a_commit(
    sides: tuple[Side, Side], tmp_path: Path, chroot: str
) -> None:
    here, there = sides
    here.write("gone", [b"1"])
    own = {"sources": "main", "whitelist": "gone"}
    away = there.as_target(**{"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 300})
    with start_mirror(tmp_path, own, here.as_source("main", groupid="lost"), away) as mirror:
        try:
            _, err = mirror.communicate(timeout=SECONDS)
        finally:
            mirror.kill()
    assert mirror.returncode == 1
    assert "kafkalog: 1 message(s) were not delivered to the target; nothing more is committed" in err
    with ZooKeeperSession(chroot) as session:
        assert registries.group_offsets(session, V07Layout(), "lost", "gone") == {"1-0": 0}


def test_wrong_properties_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "mirror.properties"
    file.write_text("sources=a\nwhitelist=.*\nsource.a.zk.connect=zk:1\nsource.a.groupid=g\n")
    ran = kafkalog("mirror", str(file))
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        f"kafkalog: target.*: {file}: bootstrap.servers is missing; "
        "allowed: host:port, separated by commas, such as localhost:9092"
    ]
    assert kafkalog("mirror", str(tmp_path / "none")).stderr.startswith("kafkalog: cannot read ")
