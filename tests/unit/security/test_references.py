"""References to secrets kept elsewhere: what they become, what is refused, and that no value shows."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kafkalog.config.classic_config import Client07Config
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.mirror_config import mirror_config
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.datasource.options.client_options import client_properties
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.references import resolved
from pyspark_kafkalog.zookeeper.protection import protection_of

KAFKAS = "org.apache.kafka.common.config.provider"
SECRET = "ge heim=}!"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one secret in each kind of place."""
    monkeypatch.setenv("KAFKALOG_TEST_SECRET", SECRET)
    (tmp_path / "all.properties").write_text(f"# secrets\nkey={SECRET}\nempty=\n")
    (tmp_path / "one").write_text(f"{SECRET}\n")
    return tmp_path


def config(**given: str) -> ClientConfig:
    named = {name.replace("__", "."): value for name, value in given.items()}
    base = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "config.providers": "env,file,directory",
    }
    return parse(ClientConfig, base | named, source="options")


def password(reference: str, **given: str) -> str | None:
    return resolved(config(sasl__password=reference, **given)).sasl_password


def test_each_provider_gives_its_secret(kept: Path) -> None:
    assert password("${env:KAFKALOG_TEST_SECRET}") == SECRET
    assert password(f"${{file:{kept}/all.properties:key}}") == SECRET
    assert password(f"${{directory:{kept}:one}}") == SECRET
    assert (
        password(f"a${{env:KAFKALOG_TEST_SECRET}}b${{file:{kept}/all.properties:empty}}c") == f"a{SECRET}bc"
    )


def test_names_and_classes_are_as_in_kafka(kept: Path) -> None:
    given = {
        "config__providers": "Vars, other",
        "config__providers__Vars__class": f"{KAFKAS}.EnvVarConfigProvider",
        "config__providers__other__class": f"{KAFKAS}.DirectoryConfigProvider",
        "config__providers__other__param__allowed__paths": f"/none,{kept}",
    }
    assert (
        password(f"${{Vars:KAFKALOG_TEST_SECRET}}|${{other:{kept}:one}}|", **given) == f"{SECRET}|{SECRET}\n|"
    )


def test_what_no_provider_is_named_for_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    text = "${env:KAFKALOG_TEST_SECRET} ${x:y} ${} $x"
    assert password(text, config__providers="file") == text
    assert "sasl.password: ${env:...} stays as it is: config.providers does not name env" in caplog.text


def test_a_value_is_not_looked_at_for_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKALOG_TEST_SECRET", "${env:HOME}")
    assert password("${env:KAFKALOG_TEST_SECRET}") == "${env:HOME}"


def test_a_configuration_holds_no_secret_wherever_it_goes() -> None:
    made = config(sasl__jaas__config='M required username="u" password="${env:KAFKALOG_TEST_SECRET}";')
    assert resolved(made).sasl_jaas_config == f'M required username="u" password="{SECRET}";'
    assert "geheim" not in repr(made).replace(" ", "")
    assert SECRET.encode() not in pickle.dumps(made)
    assert SECRET not in str(made.as_properties())
    assert parse(ClientConfig, made.as_properties(), source="again") == made


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${env:NOT_SET_HERE}", "the environment variable NOT_SET_HERE is not set in this process"),
        ("${env:/path:NAME}", "variables of the environment have no path; expected ${provider:NAME}"),
        ("${file:DIR/all.properties:nokey}", "the file DIR/all.properties has no key nokey"),
        ("${file:DIR/none:key}", "there is no file DIR/none"),
        ("${file:DIR/all.properties}", "is incomplete; expected ${provider:path:key}"),
        ("${directory:DIR:none}", "there is no file DIR/none"),
        ("${directory:DIR:../x}", "../x is not the name of a file in DIR"),
        ("${directory:DIR:..}", "there is no file DIR/.."),
        ("${directory:DIR}", "is incomplete; expected ${provider:path:file}"),
    ],
)
def test_what_is_missing_is_named(kept: Path, reference: str, message: str) -> None:
    reference, message = reference.replace("DIR", str(kept)), message.replace("DIR", str(kept))
    made = replace(config(sasl__password=reference), servers_option="kafka.bootstrap.servers")
    with pytest.raises(InvalidConfig) as e:
        resolved(made, made.option_name)
    assert str(e.value).startswith(f"kafka.sasl.password: {reference}")
    assert message in str(e.value)
    assert SECRET not in str(e.value)


def test_a_damaged_file_of_secrets_is_not_repeated(kept: Path) -> None:
    (kept / "bad").write_text("key=\\ugeh")
    with pytest.raises(InvalidConfig, match=r"bad is not a properties file$") as e:
        password(f"${{file:{kept}/bad:key}}")
    assert "geh" not in str(e.value)
    assert e.value.__cause__ is None
    (kept / "bad").write_bytes(b"key=\xff")
    with pytest.raises(InvalidConfig, match="is not UTF-8 text: byte 4"):
        password(f"${{file:{kept}/bad:key}}")


def test_what_is_not_allowed_is_not_read(kept: Path) -> None:
    below = {"config__providers__file__param__allowed__paths": f"{kept}/below"}
    for path in (f"{kept}/all.properties", f"{kept}/below/../all.properties"):
        with pytest.raises(InvalidConfig, match=r"allowed\.paths=.*/below does not allow"):
            password(f"${{file:{path}:key}}", **below)
    names = {"config__providers__env__param__allowlist__pattern": "KAFKALOG_.*_OTHER"}
    with pytest.raises(InvalidConfig, match=r"allowlist\.pattern=KAFKALOG_\.\*_OTHER does not allow"):
        password("${env:KAFKALOG_TEST_SECRET}", **names)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"config__providers": "vault"}, "config.providers.vault.class is missing; allowed: EnvVar"),
        (
            {"config__providers__env__class": "com.example.VaultProvider"},
            "config.providers.env.class=com.example.VaultProvider cannot be used from Python; allowed: ",
        ),
        (
            {"config__providers__file__param__allowed_paths": "/x"},
            "config.providers.file.param.allowed_paths is unknown; allowed: allowed.paths",
        ),
        ({"config__providers__env__param__allowlist__pattern": "("}, "is not a regular expression"),
        (
            {"client__id": "${env:KAFKALOG_TEST_SECRET}"},
            "client.id: config.providers are not asked for its value; allowed: in text of ssl.*, sasl.*",
        ),
    ],
)
def test_mistakes_are_found_before_a_connection(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as e:
        config(**given)
    assert message in str(e.value)


def test_options_of_spark_have_their_prefix(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.password": f"${{kept:{kept}:one}}",
        "kafka.config.providers": "kept",
        "kafka.config.providers.kept.class": f"{KAFKAS}.DirectoryConfigProvider",
    }
    values = client_properties(ClientConfig, given, warn_except=())
    assert resolved(ClientConfig(**values)).sasl_password == SECRET  # type: ignore[arg-type]
    assert caplog.text == ""


def test_both_sides_of_a_mirror_have_providers_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    providers = {"config.providers": "vars", "config.providers.vars.class": f"{KAFKAS}.EnvVarConfigProvider"}
    secret = {"sasl.password": "${vars:KAFKALOG_TEST_SECRET}"}
    source = {"zk.connect": "z:1", "groupid": "g", "protocol": "0.8", **login, **providers, **secret}
    target = {"bootstrap.servers": "a:1", **login, **providers, **secret}
    found = mirror_config(
        {
            "sources": "main", "whitelist": ".*",
            **{f"source.main.{name}": value for name, value in source.items()},
            **{f"target.{name}": value for name, value in target.items()},
        },
        source="file",
    )  # fmt: skip
    assert isinstance(found.target, ClientConfig)
    assert resolved(found.target).sasl_password == SECRET
    made = found.sources["main"]
    assert isinstance(made, Client07Config)
    assert resolved(made.for_todays_wire(("a", 1))).sasl_password == SECRET
    assert caplog.text == ""


def test_the_login_at_zookeeper_may_be_kept_elsewhere() -> None:
    jaas = "DigestLoginModule required username=u password='${env:KAFKALOG_TEST_SECRET}';"
    made = ZooKeeperConfig(zookeeper_sasl_jaas_config=jaas, config_providers=("env",))
    assert protection_of(made).login == ("u", SECRET)
