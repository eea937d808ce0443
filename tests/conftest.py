"""A test's directory is its marker: tests/spark/test_x.py is marked ``spark``.

`make test` runs two processes of pytest-xdist. A file's tests stay together, as they share fixtures; so do
all that use the one Spark session, and all that use the Spark drivers of the loads' faults.
"""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.spark_jvm import hurry_jvms
from tests.support.zookeeper import server_in

_ROOT = Path(__file__).parent

# kio, one of the oracles, needs Python 3.11; kafka-python, the other, is heard elsewhere too.
collect_ignore = (
    []
    if sys.version_info >= (3, 11)
    else ["unit/formats/test_foreign_codecs.py", "property/protocol/test_foreign.py"]
)


hurry_jvms()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job is deaf to interrupts, and so would be the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_LONGEST_FIRST = ("spark", "broker", "fault/loads", "notebooks", "interop", "fault", "property", "unit")
"""The order of the suites: what is long and cannot be divided begins early, to end with the rest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(getattr(pytest.mark, _suite(item).partition("/")[0]))
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: _LONGEST_FIRST.index(_suite(item)) if _suite(item) in _LONGEST_FIRST else -1)


def _suite(item: pytest.Item) -> str:
    path = item.path.relative_to(_ROOT)
    return "fault/loads" if path.is_relative_to("fault/loads") else path.parts[0]


def _group(item: pytest.Item) -> str:
    """Tests with one name run in one process: they share Spark's session, its drivers, or fixtures."""
    suite = _suite(item)
    return suite if suite in ("spark", "fault/loads") else str(item.path)


_chroots = itertools.count()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper server for all tests that do it no harm; see `zookeeper_connect`."""
    with server_in(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_connect(zookeeper: ZooKeeperServer) -> str:
    """What to give as ``zookeeper.connect``: a chroot that no other test has."""
    return f"{zookeeper.connect}/test-{next(_chroots)}"


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that the test may kill and start again."""
    with server_in(tmp_path / "zookeeper") as server:
        yield server
