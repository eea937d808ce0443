"""How the tests' Spark starts: what lives for seconds never earns back what its start costs it.

Measured as CPU seconds of a session that reads a topic some twenty times and writes Parquet: without the
optimising compiler 15 of the JVM and 7 of Python's workers. With classes from an archive the JVM needs 9; and
the workers need 3 when they do not compile PySpark anew, each for itself: Spark puts a copy of its own first
on their path, and that is a ZIP file, for which Python keeps no compiled modules.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.class_archive import archive_in, digest, options_that_make, options_with

ROOT = Path(__file__).parents[3]

JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_PLACE = ROOT / ".pytest_cache" / "spark"
_BUILD_SECONDS = 120


def hurry_jvms() -> None:
    """Give flags, archive and a home without ZIP files to each Spark driver that is started from here on, by
    whatever process of ours.

    Spark's launcher reads them from the environment, so that notebooks and commands have them too; what the
    user has there already is left. An archive that is not there, or of another Java, is as none.
    """
    os.environ.setdefault("SPARK_HOME", str(_home_without_zip_files(_pyspark())))
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join((JVM_FLAGS, *options_with(_archive()))))
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_FLAGS)


def flags_of_executors() -> str:
    """For ``spark.executor.extraJavaOptions``: what drivers get from the environment."""
    return os.environ["SPARK_SUBMIT_OPTS"]


def spark_home(pyspark: Path | None = None) -> Path:
    """Spark's home, for the PySpark in this directory or the suite's. The directory ``work`` of its local
    clusters will be there.
    """
    return _home_without_zip_files(pyspark / "pyspark") if pyspark else Path(os.environ["SPARK_HOME"])


def archive_in_background() -> subprocess.Popen[bytes] | None:
    """Start a process that makes the archive of classes; None where it is there, or the user's own flags are
    used. Sessions that start before it is ready do without.
    """
    archive = _archive()
    if archive.exists() or str(archive) not in os.environ["SPARK_SUBMIT_OPTS"]:
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.spark.spark_jvm"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _home_without_zip_files(package: Path) -> Path:
    """Links to what Spark starts with; without ``python/lib``, its workers import what is installed."""
    home = _PLACE / f"home-{digest(package, flags=JVM_FLAGS)}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "jars"):
        try:
            (home / name).symlink_to(package / name)
        except FileExistsError:
            continue
    return home


def _archive() -> Path:
    return archive_in(_PLACE, _pyspark() / "jars", flags=JVM_FLAGS)


def _make_archive() -> None:
    """Run what the tests run, in a JVM that writes down its classes when it ends."""
    archive = _archive()
    beside = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((JVM_FLAGS, *options_that_make(beside)))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkContext

    import kafkalog_broker
    import pyspark_kafkalog as kafkalog
    from tests.support.spark.spark_session import running_session

    with kafkalog_broker.start_broker() as server, tempfile.TemporaryDirectory() as directory:
        with kafkalog.Producer({"bootstrap.servers": server.bootstrap_servers}) as producer:
            producer.send("topic", b'{"number": 1}', key=b"key")
        with running_session() as spark:
            jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
            topic = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": "topic"}
            frame = spark.read.format("kafkalog").options(**topic).load()
            number = "from_json(cast(value as string), 'number int').number as number"
            frame.selectExpr(number, "key").write.parquet(f"{directory}/table")
            table = spark.read.parquet(f"{directory}/table")
            assert table.groupBy("key").sum("number").orderBy("key").toPandas().shape == (1, 2)
            stream = spark.readStream.format("kafkalog").options(**topic).load().writeStream.format("noop")
            stream = stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
            stream.start().awaitTermination()
        jvm.stdin.close()
        jvm.wait(_BUILD_SECONDS)
    if beside.exists():  # a Java without an archive of its own writes none
        beside.replace(archive)


if __name__ == "__main__":
    hurry_jvms()
    _make_archive()
