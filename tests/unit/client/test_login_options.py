"""From `sasl.*` properties to a login: what is said to a broker, and errors that name the option to set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_kafkalog.client.login.mechanisms import login_of
from pyspark_kafkalog.client.login.tokens import without_secrets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.properties import parse_properties
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.errors import AuthenticationFailed, InvalidConfig
from pyspark_kafkalog.security.references import resolved

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def config(**given: str) -> ClientConfig:
    named = {name.replace("__", "."): value for name, value in given.items()}
    base = {"bootstrap.servers": "a:1", "security.protocol": "SASL_PLAINTEXT"}
    return parse(ClientConfig, base | named, source="options")


def first_message(host: str = "b", **given: str) -> tuple[str, bytes]:
    login = login_of(config(**given))
    return login.mechanism, next(login.start(host, 1))


@pytest.mark.parametrize(
    "given",
    [
        {"sasl__jaas__config": f'{PLAIN} required username="alice" password="pa=ss;";'},
        {"sasl__jaas__config": f'kafkashaded.{PLAIN} required username=alice password="pa=ss;";'},
        # Scram's module with the mechanism PLAIN is pasted often, and logs in with Kafka too.
        {"sasl__jaas__config": "x.ScramLoginModule required username='alice' password='pa=ss;' ;"},
        {"sasl__username": "alice", "sasl__password": "pa=ss;"},
    ],
)
def test_plain_sends_user_and_password(given: dict[str, str]) -> None:
    assert first_message(sasl__mechanism="PLAIN", **given) == ("PLAIN", b"\0alice\0pa=ss;")


def test_scram_may_be_with_a_delegation_token() -> None:
    jaas = 'S required username="id" password="hmac" tokenauth="true";'
    mechanism, message = first_message(sasl__mechanism="SCRAM-SHA-512", sasl__jaas__config=jaas)
    assert mechanism == "SCRAM-SHA-512"
    assert message.startswith(b"n,,n=id,r=")
    assert message.endswith(b",tokenauth=true")


def test_a_token_goes_with_its_extensions(tmp_path) -> None:
    (tmp_path / "token").write_text("abc.def.ghi\n")
    sent = first_message(
        sasl__mechanism="OAUTHBEARER",
        sasl__oauthbearer__token__endpoint__url=f"file:{tmp_path}/token",
        sasl__jaas__config=f'{OAUTH} required extension_logicalCluster="lkc-1";',
        sasl__oauthbearer__extensions="poolId=p",
    )
    expected = b"n,,\x01auth=Bearer abc.def.ghi\x01logicalCluster=lkc-1\x01poolId=p\x01\x01"
    assert sent == ("OAUTHBEARER", expected)


def no_token() -> str:
    raise RuntimeError("top-secret")


def dated_token() -> tuple[str, float]:
    return "dated", 4e9


def no_text() -> int:
    return 7


def test_a_function_may_give_the_token() -> None:
    sent = first_message(
        sasl__mechanism="OAUTHBEARER", sasl__login__callback__handler__class=f"{__name__}:dated_token"
    )
    assert sent == ("OAUTHBEARER", b"n,,\x01auth=Bearer dated\x01\x01")


@pytest.mark.parametrize(
    ("function", "words"),
    [("no_token", "failed with RuntimeError"), ("no_text", "returned int"), ("absent", "no such function")],
)
def test_a_function_that_gives_none_is_named(function: str, words: str) -> None:
    with pytest.raises((AuthenticationFailed, InvalidConfig), match=words) as e:
        first_message(
            sasl__mechanism="OAUTHBEARER", sasl__login__callback__handler__class=f"{__name__}:{function}"
        )
    assert f"sasl.login.callback.handler.class={__name__}:{function}" in str(e.value)
    assert "top-secret" not in str(e.value)


ENDPOINT = {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__token__endpoint__url": "http://h:1/t"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"sasl__mechanism": "PLAIN"},
            "sasl.jaas.config is missing, which PLAIN needs; or set sasl.username",
        ),
        ({"sasl__mechanism": "PLAIN", "sasl__username": "u"}, "or set sasl.username and sasl.password"),
        ({"sasl__mechanism": "PLAIN", "sasl__jaas__config": f"{PLAIN} required;"}, "config has no username"),
        (
            {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f"{PLAIN} required username=geheim;"},
            "sasl.jaas.config has no password",
        ),
        (
            {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f"{PLAIN} required password=7geheim;"},
            "sasl.jaas.config: Value not specified for key 'password' in JAAS config",
        ),
        ({"sasl__mechanism": "NTLM"}, "sasl.mechanism=NTLM is not allowed; allowed: PLAIN, SCRAM-SHA-256,"),
        ({"sasl__mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token.endpoint.url is missing"),
        (ENDPOINT, "sasl.jaas.config has no clientId"),
        (ENDPOINT | {"sasl__jaas__config": f"{OAUTH} required clientId=geheim;"}, "has no clientSecret"),
        (ENDPOINT | {"sasl__oauthbearer__token__endpoint__url": "ftp://geheim"}, "https://..., http://..."),
        (
            ENDPOINT | {"sasl__login__callback__handler__class": "com.acme.Handler"},
            "sasl.login.callback.handler.class=com.acme.Handler is a Java class",
        ),
        (
            {"sasl__mechanism": "PLAIN", "sasl__client__callback__handler__class": "com.acme.Handler"},
            "sasl.client.callback.handler.class=com.acme.Handler is a Java class",
        ),
        ({"sasl__mechanism": "GSSAPI"}, "sasl.kerberos.service.name is missing"),
    ],
)
def test_an_error_names_the_option_and_no_secret(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig) as e:
        login_of(config(**given))
    assert words in str(e.value)
    assert "geheim" not in str(e.value)


def test_options_of_spark_are_named_as_spark_has_them() -> None:
    spark = ClientConfig(
        bootstrap_servers="a:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        servers_option="kafka.bootstrap.servers",
    )
    with pytest.raises(InvalidConfig, match=r"^kafka\.sasl\.jaas\.config is missing"):
        login_of(spark)


def test_no_configuration_shows_its_secrets() -> None:
    shown = repr(
        config(
            sasl__mechanism="PLAIN",
            sasl__jaas__config="geheim1",
            sasl__password="geheim2",
            sasl__oauthbearer__client__secret="geheim3",
        )
    )
    assert "geheim" not in shown


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("geheim", "Invalid: *** of alice"),
        ("a", "Invalid: geheim of alice"),
        ("of", "Invalid: geheim *** alice"),
    ],
)
def test_a_password_that_a_broker_repeats_is_hidden(password: str, said: str) -> None:
    login = login_of(config(sasl__mechanism="PLAIN", sasl__username="alice", sasl__password=password))
    assert without_secrets("Invalid: geheim of alice", login.secrets) == said


MANUAL = Path(__file__).parents[3] / "docs" / "security.md"


def test_what_the_manual_shows_for_each_service_is_understood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'
    (tmp_path / "sasl.jaas.config").write_text(jaas)
    chapter = MANUAL.read_text(encoding="utf-8").split("## From a service's properties to a read\n")[1]
    blocks = re.findall(r"```properties\n(.*?)```", chapter.split("\n## ")[0], re.DOTALL)
    found = []
    for block in blocks:
        given = parse_properties(block.replace("/mnt/user:", f"{tmp_path}:"))
        client = resolved(parse(ClientConfig, given, source="file"))
        options = {f"kafka.{name}": value for name, value in given.items()}
        spark = resolved(parse_batch_options({**options, "subscribe": "t"}).consumer)
        assert spark.sasl_jaas_config == client.sasl_jaas_config
        if client.security_protocol == "SSL":
            found.append(client.ssl_keystore_location or client.ssl_key_location)
        elif client.sasl_mechanism in ("PLAIN", "SCRAM-SHA-512"):
            found.append(next(login_of(client).start("b", 1)).decode().partition(",r=")[0])
        else:
            found.append(login_of(client).mechanism)
    assert found == [
        "\0KEY\0SECRET",
        "OAUTHBEARER",
        "n,,n=alice",
        "\0$ConnectionString\0Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;"
        "SharedAccessKey=KEY=",
        "OAUTHBEARER",
        "client.keystore.p12",
        "service.key",
        "n,,n=u",
        "/mnt/user/user.key",
        "GSSAPI",
    ]
    assert caplog.text == ""
