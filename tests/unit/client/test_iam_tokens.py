"""Logins to Amazon MSK, with a signer that says what it was asked."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

import pytest

from pyspark_kafkalog.client.login import tokens
from pyspark_kafkalog.client.login.mechanisms import login_of
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import AuthenticationFailed, InvalidConfig

MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"
BROKER = "b-1.demo.x1y2z3.c3.kafka.eu-central-1.amazonaws.com"


class Signer:
    """Its tokens are the arguments of the call; they last 900 s."""

    @staticmethod
    def _token(*asked: str) -> tuple[str, int]:
        return "/".join(asked), int(time.time() * 1000) + 900_000

    @classmethod
    def generate_auth_token(cls, region: str) -> tuple[str, int]:
        if region == "us-nowhere-1":
            raise RuntimeError("no credentials")
        return cls._token(region)

    @classmethod
    def generate_auth_token_from_profile(cls, region: str, profile: str) -> tuple[str, int]:
        return cls._token(region, profile)

    @classmethod
    def generate_auth_token_from_role_arn(cls, region: str, role: str, session: str) -> tuple[str, int]:
        return cls._token(region, role, session)


@pytest.fixture(autouse=True)
def signer(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = Signer
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)
    monkeypatch.setattr(tokens, "_kept", {})
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def sent(host: str, options: str = "", **more: str) -> tuple[str, bytes]:
    given = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"{MODULE} required {options};",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        **more,
    }
    login = login_of(parse(ClientConfig, given, source="options"))
    return login.mechanism, next(login.start(host, 1))


@pytest.mark.parametrize(
    ("host", "options", "token"),
    [
        (BROKER, "", b"eu-central-1"),
        ("b-1.demo.x1y2z3.c3.kafka.cn-north-1.amazonaws.com.cn", "", b"cn-north-1"),
        ("boot-x1.c3.kafka-serverless.us-east-1.amazonaws.com", "", b"us-east-1"),
        (BROKER, 'awsProfileName="dev"', b"eu-central-1/dev"),
        (
            BROKER,
            'awsRoleArn="arn:aws:iam::1:role/r"',
            b"eu-central-1/arn:aws:iam::1:role/r/pyspark-kafkalog",
        ),
        (BROKER, "awsRoleArn=role awsRoleSessionName=mine", b"eu-central-1/role/mine"),
    ],
)
def test_the_signer_is_asked_for_the_region_of_the_broker(host: str, options: str, token: bytes) -> None:
    assert sent(host, options) == ("OAUTHBEARER", b"n,,\x01auth=Bearer " + token + b"\x01\x01")


def test_elsewhere_the_environment_has_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="host name proxy holds no AWS region; set AWS_REGION"):
        sent("proxy")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert b"Bearer eu-west-1" in sent("proxy")[1]


def test_a_signer_that_is_missing_or_cannot_sign_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="awsRoleExternalId"):
        sent(BROKER, "awsRoleArn=role awsRoleExternalId=x")
    monkeypatch.setenv("AWS_REGION", "us-nowhere-1")
    with pytest.raises(AuthenticationFailed, match=r"RuntimeError: no credentials; check sasl\.jaas\.config"):
        sent("proxy")
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(InvalidConfig, match=r"pip install 'pyspark-kafkalog\[msk\]'"):
        sent(BROKER)
