"""What docs/stores.md shows is run as it stands there, but for addresses and for JARs, which are here."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.ledger.stores import object_clients
from pyspark_kafkalog.ledger.stores.locations import open_store
from tests.support.foreign.fetched import ROOT, NotAvailable
from tests.support.foreign.mini_hdfs import MiniHdfs
from tests.support.foreign.object_stores import azurite
from tests.support.ledger.s3_server import BUCKET, KEYS, s3_server
from tests.support.spark.spark_environments import abfs_configs, abfs_jars, s3a_configs, s3a_jars
from tests.support.spark.spark_session import environment_of

S3, AZURE, HDFS = (
    part.partition("\n")[2]
    for part in re.split(r"^## On ", (ROOT / "docs" / "stores.md").read_text(encoding="utf-8"), flags=re.M)[
        1:
    ]
)


def blocks(section: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.M)
    return [text for named, text in found if named == language]


class Site(NamedTuple):
    """Where the page's ``s3a://lake`` is, and what Spark and the commands are told."""

    url: str
    configuration: str
    environment: Mapping[str, str]


def configuration(section: str, jars: list[Path], more: Mapping[str, str]) -> str:
    """The page's, with these JARs instead of those that Spark would fetch."""
    shown = [block for block in blocks(section) if block.startswith("spark.jars.packages")]
    assert len(shown) == (1 if jars else 0)
    kept = [line for block in shown for line in block.splitlines() if not line.startswith("spark.jars.")]
    given = {"spark.jars": ",".join(map(str, jars)), "spark.ui.enabled": "false", **more}
    return "\n".join([*kept, *(f"{name} {value}" for name, value in given.items())])


def s3_site(_: Path) -> Iterator[Site]:
    """moto, which lets a user do what the page's policy says, and nothing else."""
    jars = s3a_jars()
    with s3_server() as port:
        endpoint = f"http://127.0.0.1:{port}"
        at = {"endpoint_url": endpoint, "region_name": KEYS["AWS_REGION"]}
        admin = boto3.client("iam", aws_access_key_id="admin", aws_secret_access_key="admin", **at)
        (policy,) = blocks(S3, "json")
        admin.create_user(UserName="loader")
        named = json.dumps(json.loads(policy.replace(":::lake", f":::{BUCKET}")))
        admin.put_user_policy(UserName="loader", PolicyName="loads", PolicyDocument=named)
        key = admin.create_access_key(UserName="loader")["AccessKey"]
        plain = {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", plain)).close()
        login = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        environment = {**login, "AWS_REGION": KEYS["AWS_REGION"], "AWS_ENDPOINT_URL": endpoint}
        more = {name: value for name, value in s3a_configs(endpoint).items() if not name.endswith(".key")}
        yield Site(f"s3a://{BUCKET}/page", configuration(S3, jars, more), environment)


def azure_site(directory: Path) -> Iterator[Site]:
    """Azurite, with the account's key instead of a managed identity."""
    jars = abfs_jars()
    with azurite(directory / "azurite.log") as server:
        more = abfs_configs(server.environment["AZURE_STORAGE_ENDPOINT"])
        more["spark.hadoop.fs.azure.account.auth.type"] = "SharedKey"
        yield Site(f"{server.url}/page", configuration(AZURE, jars, more), server.environment)


def hdfs_site(directory: Path) -> Iterator[Site]:
    """Hadoop's HDFS, without Kerberos."""
    server = MiniHdfs(directory).start()
    try:
        yield Site(f"{server.url}/lake", configuration(HDFS, [], {}), {})
    finally:
        server.kill()


@pytest.fixture(params=[s3_site, azure_site, hdfs_site], ids=["S3", "Azure", "HDFS"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    try:
        yield from request.param(tmp_path)
    except NotAvailable as e:
        pytest.skip(str(e))


class Page:
    """The page's programs and commands, in a directory of their own."""

    def __init__(self, site: Site, directory: Path, servers: str, topic: str) -> None:
        self._site, self._directory = site, directory
        (directory / "spark-defaults.conf").write_text(site.configuration)
        self._environment = {
            **os.environ, **environment_of(None), **site.environment,
            "SPARK_CONF_DIR": str(directory), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self._servers, self._topic = servers, topic
        self.programs = [self._here(program) for program in blocks(S3, "python")]

    def _here(self, text: str) -> str:
        text = text.replace("s3a://lake", self._site.url).replace("localhost:9092", self._servers)
        return text.replace('"subscribe": "flights"', f'"subscribe": "{self._topic}"')

    def run(self, command: str) -> str:
        """What a command of the page writes; it must succeed."""
        done = subprocess.run(
            shlex.split(self._here(command)), cwd=self._directory, env=self._environment,
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr[-3000:]}"
        return done.stdout


@pytest.mark.timeout(1200)  # four nights, a process each: two minutes, on a busy machine ten
def test_the_page_leads_to_a_nightly_load(
    site: Site, tmp_path: Path, own_broker: Any, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = own_broker.bootstrap_servers
    create_topics(servers, [NewTopic(topic_name, 2)])
    page = Page(site, tmp_path, servers, topic_name)
    nightly, reader = page.programs
    (tmp_path / "nightly.py").write_text(nightly)
    (tmp_path / "reader.py").write_text(reader)
    commands = [line for block in blocks(S3) for line in block.splitlines()]
    (check,) = (line for line in commands if line.startswith("kafkalog verify --store"))
    (tonight,) = (block for block in blocks(S3) if block.startswith("python nightly.py"))
    (weekly,) = (line.partition("kafkalog")[1:] for line in commands if line.startswith("15 5 * * 0"))

    page.run(check)
    for night, count in enumerate((5, 3), start=1):
        with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
            for n in range(count):
                producer.send(topic_name, str(n).encode(), partition=n % 2)
        load, *looks = tonight.splitlines()
        assert page.run(load).split("\n")[0] == f"load {night}: {count} records"
    for look in looks:
        page.run(look)
    compact, gc = "".join(weekly).split(" && ")
    assert "commit 3: 1 file in " in page.run(compact)
    assert "removed 4 receipts and 0 marks of 2 loads" in page.run(gc)
    assert re.findall(r"\|(\d{4}-\d\d-\d\d\|) +(\d+)\|", page.run("python reader.py"))[0][1] == "8"
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_clients, "_given", {})
    listed = open_store(site.url).read("flights/_manifest/files.txt")
    assert listed is not None
    assert [f"{site.url}/flights/kl_compact=00000003/" in url for url in listed.decode().splitlines()] == [
        True
    ]
