"""Ledgers in an object store: what `Store` promises holds at an S3 server, and when answers are lost."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import boto3
import obstore
import pytest

from pyspark_kafkalog.errors import InvalidConfig, LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores import object_clients, object_store
from pyspark_kafkalog.ledger.stores.hadoop_keys import settings_of
from pyspark_kafkalog.ledger.stores.locations import check_store, is_same_store, open_store
from pyspark_kafkalog.ledger.stores.object_store import ObjectStore
from pyspark_kafkalog.ledger.stores.store import FileStore, Store, SubStore
from tests.support.command_line import kafkalog
from tests.support.ledger.s3_server import BUCKET, KEYS, Gate
from tests.support.manual_clock import ManualClock


@pytest.fixture
def s3(url: str) -> FileStore:
    """Empty. The same of a path is in tests/unit/stores/test_local_store.py."""
    return open_store(url)


@pytest.mark.long("many writers at one store")
def test_a_record_is_created_once_and_keeps_its_first_content(s3: FileStore) -> None:
    assert s3.create("plans/1.json", b"first")
    assert not s3.create("plans/1.json", b"second, and longer")
    assert not s3.create("plans/1.json", b"first")
    assert s3.read("plans/1.json") == b"first"
    assert s3.read("plans/2.json") is None


def test_of_fifty_creators_one_wins(s3: FileStore) -> None:
    start, won = threading.Barrier(50), []

    def create(racer: int) -> None:
        start.wait()
        if s3.create("commits/1.json", b"%d" % racer * 100):
            won.append(racer)

    threads = [threading.Thread(target=create, args=(racer,)) for racer in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert s3.read("commits/1.json") == b"%d" % won[0] * 100


def test_names_are_those_directly_in_a_directory(s3: FileStore) -> None:
    for name in ("plans/2.json", "plans/1.json", "load.json", "plans/below/3.json", "plansnot/4.json"):
        s3.create(name, b"data")
    assert s3.names("plans") == ["1.json", "2.json", "below"]
    assert s3.names("commits") == []
    assert s3.names("") == ["load.json", "plans", "plansnot"]
    assert s3.exists("plans/1.json")
    assert not s3.exists("plans/3.json")


def test_hints_are_replaced_and_removed(s3: FileStore) -> None:
    s3.replace("offsets/part-1-clicks-0", b"long line\n")
    s3.replace("offsets/part-1-clicks-0", b"short\n")
    assert s3.read("offsets/part-1-clicks-0") == b"short\n"
    s3.remove("offsets/part-1-clicks-0")
    s3.remove("offsets/part-1-clicks-0")
    assert s3.read("offsets/part-1-clicks-0") is None
    for name in ("offsets/a", "offsets/below/b", "offsetsnot/c"):
        s3.replace(name, b"data")
    assert sorted(file.name for file in s3.files("offsets")) == ["offsets/a", "offsets/below/b"]
    s3.remove_directory("offsets")
    s3.remove_directory("offsets")
    assert s3.names("") == ["offsetsnot"]


@pytest.mark.parametrize("name", ["", "../load.json", "plans//1.json", "/etc/passwd", "plans/./1.json"])
def test_a_name_that_leaves_the_store_is_refused(s3: Store, name: str) -> None:
    with pytest.raises(LoadError, match="cannot be the name of a record"):
        s3.create(name, b"data")


def test_a_good_store_passes_the_check_and_is_left_clean(s3: FileStore) -> None:
    check_store(SubStore(s3, "flights"))
    assert SubStore(s3, "flights").names("") == []


@pytest.mark.parametrize(
    "script", ["lost", "late 500", "late 503", "409", "412", "429", "500", "500 409 412"]
)
def test_a_create_whose_answer_is_wrong_or_lost_creates_once(s3: Store, gate: Gate, script: str) -> None:
    gate.script += [script] if script.startswith("late") else script.split()
    assert s3.create("commits/1.json", b"data")
    assert gate.script == []
    assert s3.read("commits/1.json") == b"data"


@pytest.mark.parametrize("script", ["lost", "late 500", "409"])
def test_a_record_of_the_same_content_by_another_driver_is_not_taken_for_ours(
    s3: Store, gate: Gate, script: str
) -> None:
    assert s3.create("plans/1.json", b"data")
    gate.script.append(script)
    assert not s3.create("plans/1.json", b"data")


def test_a_refused_request_is_an_error_without_secrets(
    s3: Store, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.script.append("403")
    with pytest.raises(LoadError, match=r"cannot write s3a://.*/load\.json: .*; check the credentials") as e:
        s3.create("load.json", b"data")
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(e.value)
    assert s3.create("load.json", b"data")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("403 AccessDenied", r"AccessDenied: S3's words on AccessDenied\.; .*lacks a right that docs/stores"),
        ("400 ExpiredToken", r"ExpiredToken: S3's words on ExpiredToken\.; get new temporary credentials"),
        ("403 RequestTimeTooSkewed", r"RequestTimeTooSkewed: S3's words .*; set this machine's clock"),
        (
            "403 SignatureDoesNotMatch",
            r"SignatureDoesNotMatch: .*; check the credentials and what they allow",
        ),
    ],
)
def test_a_refusal_names_what_the_store_said_and_its_remedy(
    s3: Store, gate: Gate, fault: str, told: str
) -> None:
    gate.weather = lambda _: fault
    with pytest.raises(LoadError, match=rf"^cannot read s3a://.*/a b/load\.json: {told}"):
        s3.read("load.json")
    assert gate.count == 1


CALLS = (
    lambda s3: s3.read("plans/1.json"),
    lambda s3: s3.names("plans"),
    lambda s3: [(file.name, file.bytes) for file in s3.files("plans")],
    lambda s3: s3.read_range("plans/1.json", 1, 3),
    lambda s3: s3.exists("plans/1.json"),
    lambda s3: s3.create("plans/2.json", b"data"),
    lambda s3: s3.replace("HEAD.json", b"1"),
    lambda s3: s3.remove("HEAD.json"),
)  # fmt: skip
ANSWERS = (b"data", ["1.json"], [("plans/1.json", 4)], b"at", True, True, None, None)


@pytest.mark.parametrize(("call", "answer"), [*zip(CALLS, ANSWERS, strict=True)])
def test_every_request_rides_out_a_minute_of_refusals(
    url: str, gate: Gate, call: Callable[[ObjectStore], object], answer: object
) -> None:
    clock = ManualClock()
    s3 = ObjectStore(url, clock)
    s3.create("plans/1.json", b"data")
    began = clock.monotonic()
    gate.weather = lambda _: "503 SlowDown" if clock.monotonic() < began + 50 else ""
    assert call(s3) == answer
    assert clock.monotonic() >= began + 50
    gate.weather = lambda _: "503 SlowDown"
    began = clock.monotonic()
    told = r"(SlowDown: S3's words|503 Service Unavail).*tried for \d\d s; KAFKALOG_STORE_RETRY_TIMEOUT_MS"
    with pytest.raises((LoadError, OSError), match=told):
        call(s3)
    assert 50 < clock.monotonic() - began <= 60


def test_how_long_requests_are_tried_again_can_be_set(
    url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.weather = lambda _: "503 SlowDown"
    monkeypatch.setenv("KAFKALOG_STORE_RETRY_TIMEOUT_MS", "0")
    with pytest.raises(LoadError, match="SlowDown"):
        open_store(url).read("load.json")
    assert gate.count == 1
    monkeypatch.setenv("KAFKALOG_STORE_RETRY_TIMEOUT_MS", "a minute")
    with pytest.raises(InvalidConfig, match="KAFKALOG_STORE_RETRY_TIMEOUT_MS is 'a minute'; it must be"):
        open_store(url)


@pytest.mark.parametrize(("call", "answer"), [*zip(CALLS[:4], ANSWERS, strict=False)])
def test_a_body_that_is_cut_is_asked_for_again(
    url: str, gate: Gate, call: Callable[[ObjectStore], object], answer: object
) -> None:
    s3 = ObjectStore(url, ManualClock())
    s3.create("plans/1.json", b"data")
    faults = ["cut", "cut"]
    gate.weather = lambda _: faults.pop() if faults else ""
    assert call(s3) == answer
    assert faults == []


def test_a_request_without_an_answer_timed_out(url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_clients, "_REQUEST_TIMEOUT", timedelta(milliseconds=200))
    gate.weather = lambda _: "hang"
    with pytest.raises(LoadError, match=r"cannot read .*load\.json: .* timed out; check the store"):
        ObjectStore(url, retry_s=0).read("load.json")


def test_without_any_credentials_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is asked for its role last, at an address that leads nowhere here."""
    monkeypatch.setattr(object_clients, "_clients", {})
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(LoadError, match=r"no credentials were found .* Set fs\.s3a\.access\.key.*AWS_ACCESS"):
        ObjectStore("s3://lake/x", ManualClock()).read("load.json")


def test_a_line_break_in_a_key_is_an_error_like_any_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_clients, "_clients", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK\nIA")
    with pytest.raises(LoadError, match="perhaps over a line break in a key"):
        open_store(url).read("load.json")


def test_a_token_that_the_store_repeats_is_not_shown() -> None:
    body = "<Error><Token-0>not-to-be-seen</Token-0></Error>"
    assert object_clients.reason(OSError(body)) == body.replace("not-to-be-seen", "...")
    body = "<Error><Code>InvalidToken</Code><Message>m</Message><Token-0>not-to-be-seen</Token-0></Error>"
    assert object_clients.reason(OSError(body)) == "InvalidToken: m"


def test_a_bucket_that_does_not_exist_is_an_error_that_names_it(gate: Gate) -> None:
    with pytest.raises(
        LoadError, match=r"cannot write s3://absent/x/load\.json.*the bucket or container exists"
    ):
        open_store("s3://absent/x").create("load.json", b"data")


def test_a_store_is_pickled_without_its_client_or_secrets(s3: Store) -> None:
    s3.create("load.json", b"data")
    pickled = pickle.dumps(s3)
    assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in pickled
    assert pickle.loads(pickled).read("load.json") == b"data"


def test_a_lock_is_left_to_its_holder_and_taken_over_when_he_is_dead(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RENEWAL_S", 0.1)
    monkeypatch.setattr(object_store, "_LEASE_S", 600.0)  # nobody alive is too late
    code = (
        "import sys, time\n"
        "from pyspark_kafkalog.ledger.stores import object_store\n"
        "object_store._RENEWAL_S = 0.1\n"
        "with object_store.ObjectStore(sys.argv[1]).hold('.lock', 'driver 17 on host-a'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, s3.location], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(LoadBusy, match=r"\.lock is held by driver 17 on host-a: wait"),
            s3.hold(".lock", "18"),
        ):
            pass
    finally:
        other.kill()
        other.communicate()
    monkeypatch.setattr(object_store, "_LEASE_S", 0.3)
    with s3.hold(".lock", "driver 18"):
        monkeypatch.setattr(object_store, "_LEASE_S", 600.0)
        with pytest.raises(LoadBusy, match="held by driver 18"), s3.hold(".lock", "driver 19"):
            pass
        with s3.hold("another", "driver 19"):
            pass
    assert s3.read(".lock") is None


@pytest.mark.parametrize("fault", ["lost", "late 503", "hang"])
def test_a_lock_whose_answer_is_lost_is_held(
    url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(object_clients, "_REQUEST_TIMEOUT", timedelta(milliseconds=500))
    clock = ManualClock()
    s3 = ObjectStore(url, clock)
    gate.script.append(fault)
    with s3.hold(".lock", "driver 17"):
        assert (gate.script, b'"driver 17"' in (s3.read(".lock") or b"")) == ([], True)
    assert clock.monotonic() < ManualClock().monotonic() + 5  # nobody's lease was waited for


def test_a_lock_is_left_to_its_holder_who_could_not_renew_it_while_the_store_was_away(
    url: str, gate: Gate, port: int
) -> None:
    clock = ManualClock()
    s3 = ObjectStore(url, clock)
    s3.replace(".lock", b'{"holder": "driver 17"}')
    lock = {"Bucket": BUCKET, "Key": f"{object_clients.address_of(url).prefix}/.lock"}
    began = clock.monotonic()
    holder = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")

    def weather(_: object) -> str:
        passed_s = clock.monotonic() - began
        if passed_s > 40:
            holder.put_object(**lock, Body=b'{"holder": "driver 17", "beat": 1}')
        return "503" if 0 < passed_s < 30 else ""

    gate.weather = weather
    with pytest.raises(LoadBusy, match="held by driver 17"), s3.hold(".lock", "driver 18"):
        pass
    assert clock.monotonic() > began + 40


def test_a_lock_that_this_process_left_is_taken_at_once(url: str, gate: Gate) -> None:
    """The store was away when it was to be removed."""
    clock = ManualClock()
    s3 = ObjectStore(url, clock)
    with s3.hold(".lock", "driver 17"):
        gate.weather = lambda _: "away"
    gate.weather = lambda _: ""
    assert s3.exists(".lock")
    began = clock.monotonic()
    with s3.hold(".lock", "driver 17 again"):
        assert clock.monotonic() < began + 5
        assert b'"driver 17 again"' in (s3.read(".lock") or b"")


def test_a_ledger_there_is_sound_and_keeps_no_secret(s3: Store, gate: Gate) -> None:
    ledger = Ledger(s3, "flights")
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    commit = ledger.rewind(0, "run")
    assert (commit.number, ledger.verify(), ledger.known_beside()) == (1, [], ["flights"])
    assert ledger.offsets_path == s3.location
    records = [s3.read(f"flights/{name}") or b"" for name in ("load.json", "HEAD.json")]
    assert not any(value.encode() in record for value in KEYS.values() for record in records)


def test_given_settings_open_a_store_without_the_environment(
    gate: Gate, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_clients, "_given", {})
    for name in (*KEYS, "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    given = {"access_key_id": "AKIA", "secret_access_key": "hush", "region": "r", "endpoint": gate.endpoint}
    object_clients.give_settings(object_clients.address_of(f"s3://{BUCKET}/x"), given)
    assert open_store(url).create("load.json", b"data")


def test_a_store_is_tried_by_the_command_line(s3: Store, gate: Gate) -> None:
    found = kafkalog("verify", "--store", s3.location)
    assert (found.returncode, found.stdout) == (
        0,
        f"{s3.location} can keep ledgers, as far as one machine can try\n",
    )
    gate.ignores_conditions = True
    found = kafkalog("verify", "--store", s3.location)
    assert found.returncode == 1
    assert "cannot hold a ledger: create accepts a name that is taken" in " ".join(found.stderr.split())
    assert s3.names("") == []


@pytest.mark.parametrize("arguments", [("flights",), ("--store", "/x", "flights"), ()])
def test_a_check_is_of_a_ledger_or_of_a_store(arguments: tuple[str, ...]) -> None:
    assert kafkalog("verify", *arguments).returncode == 2


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("s3://key:not-to-be-seen@bucket/x", "takes no user"),
        ("abfss://c@account.dfs.core.windows.net/x?sig=not-to-be-seen", "query"),
        ("s3:///x", "must be s3://bucket/path"),
        ("abfss://account/x", "must be abfss://container@account"),
        ("gs://bucket/a//b", "no empty part"),
    ],
)
def test_a_location_that_holds_secrets_or_no_bucket_is_refused(location: str, told: str) -> None:
    with pytest.raises(UnsafeStore, match=told) as e:
        open_store(location)
    assert "not-to-be-seen" not in str(e.value)


def test_spellings_of_one_bucket_are_one_store(s3: Store, tmp_path: Path) -> None:
    assert is_same_store(s3, open_store(s3.location.replace("s3a://", "s3://")))
    assert not is_same_store(s3, open_store(f"{s3.location}/y"))
    assert not is_same_store(s3, open_store(tmp_path))
    assert s3.names("") == []


def test_a_directory_under_two_names_is_one_store(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    assert is_same_store(open_store(tmp_path / "lake"), open_store(tmp_path / "link"))
    assert not is_same_store(open_store(tmp_path / "lake"), open_store(tmp_path))
    assert list((tmp_path / "lake").iterdir()) == []


def test_records_are_encrypted_as_sparks_files(gate: Gate, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "arn:aws:kms:us-east-1:1:key/k"
    keys = {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": key}
    monkeypatch.setattr(object_clients, "_given", {})
    address = object_clients.address_of(url)
    object_clients.give_settings(address, settings_of(address, keys.get))
    assert open_store(url).create("load.json", b"data")
    client = object_clients.client(address, url)
    signed = obstore.sign(client, "HEAD", f"{address.prefix}/load.json", timedelta(minutes=1))
    request = urllib.request.Request(signed, method="HEAD")
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert answer.headers["x-amz-server-side-encryption-aws-kms-key-id"] == key


def test_what_marks_a_directory_is_not_a_file(s3: FileStore, gate: Gate) -> None:
    for name in ("load=1", "load=1/a.parquet", "load=2_$folder$", "load=3/_SUCCESS", "load=3/cut.parquet"):
        s3.replace(f"table/{name}", b"data" if name.endswith("a.parquet") else b"")
    prefix = object_clients.address_of(s3.location).prefix
    boto3.client("s3", endpoint_url=gate.endpoint).put_object(Bucket=BUCKET, Key=f"{prefix}/table/load=4/")
    found = [(file.name, file.bytes) for file in s3.files("table")]
    files = [("table/load=1/a.parquet", 4), ("table/load=3/_SUCCESS", 0), ("table/load=3/cut.parquet", 0)]
    assert sorted(found) == files


def test_the_markers_of_a_directory_go_with_it(s3: FileStore, gate: Gate) -> None:
    prefix = object_clients.address_of(s3.location).prefix
    client = boto3.client("s3", endpoint_url=gate.endpoint)
    for name in ("kl_run=lost/", "kl_run=lost/_temporary/0/", "kl_run=lost/day=1/", "kl_run=won/"):
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/load=1/{name}")
    s3.replace("load=1/kl_run=lost/day=1/a.parquet", b"data")
    there = ["load=1/kl_run=lost/", "load=1/kl_run=lost/_temporary/0/", "load=1/kl_run=lost/day=1/"]
    assert sorted(one.name for one in s3.directories("load=1")) == [*there, "load=1/kl_run=won/"]
    s3.remove_directory("load=1/kl_run=lost")
    left = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
    assert [one["Key"] for one in left] == [f"{prefix}/load=1/kl_run=won/"]
