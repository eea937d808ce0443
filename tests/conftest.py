"""A test's directory is its marker: tests/spark/test_x.py is marked ``spark``. The guide is tests/README.md.

A file's tests run in one process of pytest-xdist, as they share fixtures; so do all that use the one Spark
session, and all that use the Spark drivers of the loads' faults.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.budget import Budget
from tests.support.examples import register_profiles
from tests.support.leaks import Leaks
from tests.support.spark.spark_jvm import archive_in_background, hurry_jvms
from tests.support.zookeeper import server_in

# kio, one of the oracles, needs Python 3.11; kafka-python, the other, is heard elsewhere too.
collect_ignore = (
    []
    if sys.version_info >= (3, 11)
    else ["unit/formats/test_foreign_codecs.py", "property/protocol/test_foreign.py"]
)


register_profiles()
hurry_jvms()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job is deaf to interrupts, and so would be the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_WITHOUT_SPARK = {"tests/unit", "tests/property"}
_archiving = pytest.StashKey[Any]()
_leaks = pytest.StashKey[Leaks]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Budget(config))
    config.stash[_leaks] = Leaks()
    config.pluginmanager.register(config.stash[_leaks])
    # Spark is started several times; what makes that cheaper is made once, in the background.
    if not config.getoption("numprocesses", None) or _WITHOUT_SPARK.issuperset(config.args):
        return
    if process := archive_in_background():
        config.stash[_archiving] = process


def pytest_unconfigure(config: pytest.Config) -> None:
    if process := config.stash.get(_archiving, None):
        process.wait()


_crashed = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """A process of pytest-xdist crashed in this test, or because of an earlier one."""
    sched.config.stash[_crashed] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(_crashed, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # no test's failure: nothing to try again


_LONGEST_FIRST = (
    "peers", "spark", "fault/loads", "notebooks", "broker", "interop", "fault", "property", "unit",
)  # fmt: skip
"""The order of the suites: what is long and cannot be divided begins early, beside what mostly waits. Spark
has one session in a process, and the session of the peers has the jars of Spark's connector: they go first.
"""

_ONE_PROCESS = ("tests/spark/datasource/", "tests/spark/", "tests/fault/loads/")
"""Directories whose tests are one group, the first that fits; elsewhere a file is. Those of Spark are two,
each with a session: as one they would take longer than all others beside them.
"""

_OWN_SESSIONS = ("tests/spark/test_connect.py", "tests/spark/test_local_cluster.py")
"""Files whose sessions are in processes of their own: each is a group. `make interop` begins with them; at
its end one process would run them while the others have nothing left.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(getattr(pytest.mark, _suite(item).partition("/")[0]))
        for mark in item.iter_markers("long"):
            if not (mark.args and isinstance(mark.args[0], str)):
                raise pytest.UsageError(f'{item.nodeid}: say why it is long: pytest.mark.long("why")')
    items.sort(key=lambda item: (_file(item.nodeid) not in _OWN_SESSIONS, _LONGEST_FIRST.index(_suite(item))))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _suite(item: pytest.Item) -> str:
    suite, _, rest = item.nodeid.removeprefix("tests/").partition("/")
    return "fault/loads" if suite == "fault" and rest.startswith("loads/") else suite


class _Grouped(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist's schedulers are not typed
    """Tests of one group run in one process: they share Spark's session, its drivers, or fixtures.

    Marks of `xdist_group` would say the same, but pytest 9.2 loses them on the way to the scheduler of
    pytest-xdist 3.8 (pytest-xdist's issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        path = _file(nodeid)
        groups = () if path in _OWN_SESSIONS else _ONE_PROCESS
        return next((group for group in groups if path.startswith(group)), path)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Grouped(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The product waits and chooses by chance: in a test always alike."""
    random.seed(item.nodeid)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a file that leaves something open or running."""
    yield from request.config.stash[_leaks].watch(request.module)


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
