from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import kafkalog_broker
import pyspark_kafkalog
from kafkalog_broker.embedded import BrokerNotStarted, start_broker
from pyspark_kafkalog.errors import InvalidConfig
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.stopping import still_there
from tests.support.until import until

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def gone(pid: int) -> bool:
    try:
        return still_there([psutil.Process(pid)]) == []
    except psutil.NoSuchProcess:
        return True


def test_it_runs_in_a_process_of_its_own_and_ends_with_the_block() -> None:
    with start_broker() as running:
        pid = running.pid
        assert pid not in (os.getpid(), -1)
        assert running.running
        assert running.data_dir.is_dir()
    assert gone(pid)
    assert not running.data_dir.exists()
    assert (running.pid, running.running) == (-1, False)
    running.stop()  # which changes nothing


@pytest.mark.long("a broker that is started more than once")
def test_records_of_long_ago_stay_unless_retention_is_asked_for() -> None:
    often = {"log.retention.check.interval.ms": 20}
    long_ago = batch(b"x", timestamp=1_370_000_000_000)
    with (
        start_broker(often) as keeping,
        start_broker(often | {"log.retention.hours": 168}) as deleting,
        RawClient(keeping.port) as kept,
        RawClient(deleting.port) as deleted,
    ):
        for client in (kept, deleted):
            client.create_topic("t")
            client.produce("t", long_ago)
        until(lambda: deleted.offset_at("t", -2).offset == 1)
        warned = "written less than an hour ago"  # said after the records are gone
        until(lambda: warned in deleting.log_file.read_text())
        assert [r.value for r in kept.read("t")] == [b"x"]


@pytest.mark.long("a broker that is started more than once")
def test_a_retention_policy_of_the_users_own_is_the_one_that_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manual's example: what was written before today goes."""
    (example,) = re.findall(r"```python\n(from itertools .*?)```", MANUAL.read_text("utf-8"), re.DOTALL)
    (tmp_path / "own_policy.py").write_text(example, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    own = {"log.retention.check.interval.ms": 20, "log.retention.policy": "own_policy:SinceMidnight"}
    with start_broker(own) as running, RawClient(running.port) as client:
        for topic in ("mixed", "old"):
            client.create_topic(topic)
        client.produce("mixed", batch(b"1", timestamp=1_370_000_000_000))
        # Half an hour ahead: of today, even if midnight passes meanwhile.
        client.produce("mixed", batch(b"2", timestamp=int(time.time() * 1000) + 1_800_000))
        client.produce("old", batch(b"1", timestamp=1_370_000_000_000))
        until(lambda: client.offset_at("old", -2).offset == 1)
        assert [r.value for r in client.read("mixed", client.offset_at("mixed", -2).offset)][-1] == b"2"
    with pytest.raises(BrokerNotStarted, match=r"log\.retention\.policy=own_policy:No .*: module:Class"):
        start_broker(own | {"log.retention.policy": "own_policy:No"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("num_partitions", "num.partitions"), ("log.segment.byte", "log.segment.bytes"), ("colour", None)],
)
def test_a_property_that_there_is_not_is_an_error_that_names_the_nearest(
    name: str, meant: str | None
) -> None:
    with pytest.raises(InvalidConfig) as raised:
        start_broker(**{name: 3})
    hint = f'; did you mean {meant}? start_broker(**{{"{meant}": ...}})' if meant else ""
    assert str(raised.value) == f"start_broker: the broker has no property {name}{hint}"


PARENT = """
import sys
from kafkalog_broker.embedded import start_broker
b = start_broker()
print(b.pid, b.data_dir, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent_however_that_goes() -> None:
    roots = [str(Path(str(each.__file__)).parents[1]) for each in (kafkalog_broker, pyspark_kafkalog)]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(roots)},
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid, data_dir = parent.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(int(pid))
    assert not Path(data_dir).exists()


def imported(code: str, *names: str) -> list[str]:
    """Which of ``names`` a fresh interpreter has loaded after ``code``."""
    script = f"import sys\n{code}\nprint(*[m for m in {names!r} if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180
    )
    return out.stdout.split()


def test_the_package_is_imported_without_the_broker_or_spark() -> None:
    assert (
        imported(
            "import kafkalog_broker",
            "kafkalog_broker.embedded",
            "kafkalog_broker.server",
            "pyspark",
            "pyarrow",
        )
        == []
    )


@pytest.mark.long("a broker that is started more than once")
def test_the_brokers_process_imports_nothing_heavy() -> None:
    heavy = ("pyspark", "pyarrow", "numpy", "numba", "pandas", "asyncio")
    assert imported("import kafkalog_broker.server.broker", *heavy) == []
