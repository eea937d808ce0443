"""The recipes of docs/recipes that can be run here: their pages' files, with this checkout installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.foreign.fetched import ROOT, NotAvailable
from tests.support.foreign.recipe_environments import recipe_environment

RECORDS = 100


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker() as found:
        _produce(found.bootstrap_servers)
        yield found


@pytest.fixture
def environment() -> Callable[[str], Path]:
    def found(recipe: str) -> Path:
        try:
            return recipe_environment(recipe)
        except NotAvailable as e:
            pytest.skip(str(e))

    return found


def _produce(servers: str) -> None:
    with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
        for number in range(RECORDS):
            producer.send("flights", b"%d" % number)


def write_files(recipe: str, directory: Path) -> None:
    """The files that the page names in the first line of a block."""
    text = (ROOT / "docs" / "recipes" / f"{recipe}.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"```\w+\n(?:#|--) (\S+\.\w+)\n(.*?)```", text, re.DOTALL):
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def run(directory: Path, variables: dict[str, str], *command: str | Path) -> str:
    ran = subprocess.run(
        [str(word) for word in command],
        cwd=directory, env={**os.environ, **variables},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    return ran.stdout


def rows_of(lake: Path) -> int:
    return sum(batch.num_rows for batch in kafkalog.read_load(None, str(lake / "flights")))


def load_here(broker: EmbeddedBroker, lake: Path) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "flights"}
    with kafkalog.load(None, name="flights", offsets=str(lake / "_offsets"), **options) as load:
        load.write_parquet(str(lake / "flights"))


def test_airflow_goes_on_where_the_last_load_ended(
    environment: Callable[[str], Path], broker: EmbeddedBroker, tmp_path: Path
) -> None:
    programs = environment("airflow")
    write_files("airflow", tmp_path / "home" / "dags")
    variables = {
        "AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "KAFKA": broker.bootstrap_servers, "LAKE": str(tmp_path / "lake"),
    }  # fmt: skip
    run(tmp_path, variables, programs / "airflow", "db", "migrate")
    load_here(broker, tmp_path / "lake")
    before = rows_of(tmp_path / "lake")
    _produce(broker.bootstrap_servers)
    run(tmp_path, variables, programs / "python", tmp_path / "home" / "dags" / "flights.py")
    assert rows_of(tmp_path / "lake") == before + RECORDS


def test_dbt_reads_what_was_loaded(
    environment: Callable[[str], Path], broker: EmbeddedBroker, tmp_path: Path
) -> None:
    programs = environment("dbt")
    lake = tmp_path / "lake"
    load_here(broker, lake)
    write_files("dbt", tmp_path)
    run(tmp_path, {}, programs / "dbt", "run", "--vars", f"{{lake: {lake}}}")
    asked = "import duckdb; print(duckdb.connect('warehouse.duckdb').sql('select count(*) from flights'))"
    assert f" {rows_of(lake)} " in run(tmp_path, {}, programs / "python", "-c", asked)


def test_spark_submit_takes_a_packed_environment_to_the_executors(
    environment: Callable[[str], Path], broker: EmbeddedBroker, tmp_path: Path
) -> None:
    programs = environment("spark-submit")
    # A copy, which can be packed, instead of links to this checkout.
    ours = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--python", programs / "python"]
    run(tmp_path, {}, *ours, "--no-deps", "--reinstall", ROOT)
    write_files("spark-submit", tmp_path)
    lake = tmp_path / "lake"
    with tempfile.TemporaryDirectory() as home:  # where a local cluster unpacks what it is given
        for name in ("bin", "jars", "python"):
            Path(home, name).symlink_to(Path(pyspark.__file__).parent / name)
        archive = Path(home, "environment.tar.gz")
        pack = [programs / "venv-pack", "--prefix", programs.parent, "--output", archive]
        run(tmp_path, {}, *pack, "--compress-level", "0")
        variables = {
            "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": home,
            "PYSPARK_DRIVER_PYTHON": str(programs / "python"), "PYSPARK_PYTHON": "./environment/bin/python",
            "KAFKA": broker.bootstrap_servers, "LAKE": lake.as_uri(),
        }  # fmt: skip
        submit = [Path(home, "bin", "spark-submit"), "--master", "local-cluster[1,1,1024]"]
        said = run(tmp_path, variables, *submit, "--archives", f"{archive}#environment", "flights.py")
    assert int(said) == rows_of(lake) > 0
