"""Hadoop's keys as settings of obstore: every way to log in that has one, and words for the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.stores import object_clients
from pyspark_kafkalog.ledger.stores.hadoop_keys import settings_of
from pyspark_kafkalog.ledger.stores.object_clients import address_of

HOST = "a.dfs.core.windows.net"
S3, AZURE, GCS = "s3a://b/x", f"abfss://c@{HOST}/x", "gs://b/x"
KEYS = {"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "hush"}
OURS = {"access_key_id": "AKIA", "secret_access_key": "hush"}
S3A_AUTH = "org.apache.hadoop.fs.s3a."
PROVIDER = "fs.s3a.aws.credentials.provider"
ENVIRONMENT = "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
DEFAULT_CHAIN = (
    f"{S3A_AUTH}TemporaryAWSCredentialsProvider, {S3A_AUTH}SimpleAWSCredentialsProvider, "
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider, "
    f"{S3A_AUTH}auth.IAMInstanceCredentialsProvider"
)
TOKEN = {"fs.s3a.session.token": "t"}


def settings(location: str, keys: dict[str, str]) -> dict[str, Any]:
    return settings_of(address_of(location), keys.get)


def taken(location: str, found: dict[str, Any]) -> bool:
    """Whether obstore knows all of these names and values; no request is made."""
    return object_clients._open(address_of(location), found, location) is not None


def test_keys_of_the_environment_come_first_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**KEYS, PROVIDER: f"{ENVIRONMENT},{S3A_AUTH}SimpleAWSCredentialsProvider"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    assert settings(S3, keys) == {}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (KEYS, OURS),
        ({**KEYS, **TOKEN}, {**OURS, "session_token": "t"}),
        (
            {
                **KEYS,
                "fs.s3a.endpoint": "http://h:9000",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.endpoint.region": "r",
            },
            {**OURS, "endpoint": "http://h:9000", "region": "r"},
        ),
        (
            {
                "fs.s3a.endpoint": "h:9000",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": "false",
            },
            {"endpoint": "http://h:9000"},
        ),
        (
            {"fs.s3a.endpoint": "s3.acme"},
            {"endpoint": "https://b.s3.acme", "virtual_hosted_style_request": True},
        ),
        ({"fs.s3a.endpoint": "s3.amazonaws.com"}, {}),
        ({"fs.s3a.endpoint": "https://s3.eu-west-1.amazonaws.com/"}, {"region": "eu-west-1"}),
        (
            {"fs.s3a.endpoint": "s3-fips.us-gov-west-1.amazonaws.com"},
            {
                "endpoint": "https://b.s3-fips.us-gov-west-1.amazonaws.com",
                "virtual_hosted_style_request": True,
                "region": "us-gov-west-1",
            },
        ),
        (
            {"fs.s3a.endpoint": "s3.dualstack.eu-west-1.amazonaws.com", "fs.s3a.path.style.access": "true"},
            {"endpoint": "https://s3.dualstack.eu-west-1.amazonaws.com", "region": "eu-west-1"},
        ),
        (
            {"fs.s3a.bucket.b.endpoint.region": "here", "fs.s3a.bucket.c.endpoint.region": "there"},
            {"region": "here"},
        ),
        ({**KEYS, PROVIDER: DEFAULT_CHAIN}, OURS),
        ({**KEYS, **TOKEN, PROVIDER: DEFAULT_CHAIN}, {**OURS, "session_token": "t"}),
        ({**KEYS, **TOKEN, PROVIDER: f"{S3A_AUTH}SimpleAWSCredentialsProvider"}, OURS),
        ({PROVIDER: DEFAULT_CHAIN}, {}),
        ({**KEYS, PROVIDER: f"{ENVIRONMENT},{S3A_AUTH}SimpleAWSCredentialsProvider"}, OURS),
        ({PROVIDER: ENVIRONMENT}, {}),
        ({**KEYS, PROVIDER: f"{S3A_AUTH}auth.IAMInstanceCredentialsProvider"}, {}),
        ({**KEYS, PROVIDER: f"{S3A_AUTH}AnonymousAWSCredentialsProvider"}, {"skip_signature": True}),
        ({"fs.s3a.access.key": " AKIA\n", "fs.s3a.secret.key": "hush ", "fs.s3a.endpoint": " "}, OURS),
        (
            {"fs.s3a.bucket.b.encryption.algorithm": "SSE-KMS", "fs.s3a.bucket.b.encryption.key": "arn:k"},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:k"},
        ),
        ({"fs.s3a.encryption.algorithm": "DSSE-KMS"}, {"server_side_encryption": "aws:kms:dsse"}),
        (
            {"fs.s3a.server-side-encryption-algorithm": "SSE-KMS", "fs.s3a.server-side-encryption.key": "k"},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k"},
        ),
        (
            {"fs.s3a.encryption.algorithm": "SSE-S3", "fs.s3a.encryption.key": "unused"},
            {"server_side_encryption": "AES256"},
        ),
        (
            {"fs.s3a.encryption.algorithm": "SSE-C", "fs.s3a.encryption.key": "aHVzaA=="},
            {"server_side_encryption": "sse-c", "sse_customer_key_base64": "aHVzaA=="},
        ),
    ],
)
def test_keys_of_s3a(keys: dict[str, str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    found = settings(S3, keys)
    assert found == expected
    assert taken(S3, found)


OAUTH = {"fs.azure.account.auth.type": "OAuth"}
OAUTH_PROVIDER = "fs.azure.account.oauth.provider.type"
AZUREBFS = "org.apache.hadoop.fs.azurebfs."
CLIENT = {
    **OAUTH,
    OAUTH_PROVIDER: f"{AZUREBFS}oauth2.ClientCredsTokenProvider",
    "fs.azure.account.oauth2.client.id": "id",
    "fs.azure.account.oauth2.client.secret": "hush",
    "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {}),
        (
            {f"fs.azure.account.key.{HOST}": "aHVzaA=="},
            {"credential_type": "access_key", "account_key": "aHVzaA=="},
        ),
        ({"fs.azure.account.key.other.dfs.core.windows.net": "hush"}, {}),
        (
            {f"fs.azure.account.key.c.{HOST}": "aGVyZQ==", f"fs.azure.account.key.{HOST}": "hush"},
            {"credential_type": "access_key", "account_key": "aGVyZQ=="},
        ),
        (
            {
                f"fs.azure.account.auth.type.{HOST}": "SAS",
                f"fs.azure.sas.fixed.token.{HOST}": "?sv=1&sig=hush",
            },
            {"credential_type": "sas_token", "sas_key": "sv=1&sig=hush"},
        ),
        (
            CLIENT,
            {
                "credential_type": "client_secret",
                "client_id": "id",
                "client_secret": "hush",
                "tenant_id": "tenant",
                "authority_host": "https://login.microsoftonline.com",
            },
        ),
        (
            {
                **OAUTH,
                OAUTH_PROVIDER: f"{AZUREBFS}oauth2.MsiTokenProvider",
                "fs.azure.account.oauth2.client.id": "id",
            },
            {"credential_type": "managed_identity", "client_id": "id"},
        ),
        (
            {
                **OAUTH,
                OAUTH_PROVIDER: f"{AZUREBFS}oauth2.WorkloadIdentityTokenProvider",
                "fs.azure.account.oauth2.client.id": "id",
                "fs.azure.account.oauth2.msi.tenant": "tenant",
                "fs.azure.account.oauth2.token.file": "/token",
            },
            {
                "credential_type": "workload_identity",
                "client_id": "id",
                "tenant_id": "tenant",
                "federated_token_file": "/token",
            },
        ),
        (
            {
                **OAUTH,
                OAUTH_PROVIDER: f"{AZUREBFS}oauth2.WorkloadIdentityTokenProvider",
                "fs.azure.account.oauth2.client.id": "id",
                "fs.azure.account.oauth2.msi.tenant": "tenant",
                "fs.azure.account.oauth2.msi.authority": "https://login.chinacloudapi.cn/",
            },
            {
                "credential_type": "workload_identity",
                "client_id": "id",
                "tenant_id": "tenant",
                "federated_token_file": "/var/run/secrets/azure/tokens/azure-identity-token",
                "authority_host": "https://login.chinacloudapi.cn",
            },
        ),
        (
            {"fs.azure.abfs.endpoint": "127.0.0.1:1000", "fs.azure.always.use.https": "false"},
            {"endpoint": "http://127.0.0.1:1000/a"},
        ),
    ],
)
def test_keys_of_abfs(keys: dict[str, str], expected: dict[str, Any]) -> None:
    found = settings(AZURE, keys)
    assert found == expected
    assert taken(AZURE, found)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {}),
        ({"google.cloud.auth.service.account.json.keyfile": "/k.json"}, {"service_account": "/k.json"}),
        (
            {
                "fs.gs.auth.service.account.json.keyfile": "/ours.json",
                "google.cloud.auth.service.account.json.keyfile": "/all.json",
                "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
            },
            {"service_account": "/ours.json"},
        ),
        ({"fs.gs.auth.type": "COMPUTE_ENGINE"}, {}),
        ({"fs.gs.auth.type": "UNAUTHENTICATED"}, {"skip_signature": True}),
        ({"fs.gs.storage.root.url": "http://127.0.0.1:1000/"}, {"base_url": "http://127.0.0.1:1000"}),
    ],
)
def test_keys_of_gcs(keys: dict[str, str], expected: dict[str, Any]) -> None:
    assert settings(GCS, keys) == expected


def test_a_key_of_gcs_may_be_given_in_parts() -> None:
    parts = {"email": "e", "private.key.id": "7", "private.key": "-----BEGIN\\nhush"}
    found = settings(GCS, {f"fs.gs.auth.service.account.{name}": value for name, value in parts.items()})
    assert json.loads(found["service_account_key"]) == {
        "type": "service_account", "client_email": "e", "private_key_id": "7",
        "private_key": "-----BEGIN\nhush",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("location", "keys", "told"),
    [
        (
            S3,
            {PROVIDER: "com.acme.Vault", **KEYS},
            r"is com\.acme\.Vault, which only Java.*AWS_ACCESS_KEY_ID",
        ),
        (S3, {PROVIDER: f"{S3A_AUTH}SimpleAWSCredentialsProvider"}, r"fs\.s3a\.access\.key.*is not set"),
        (S3, {"hadoop.security.credential.provider.path": "jceks://f"}, r"is jceks://f, which only Java"),
        (S3, {"fs.s3a.bucket.b.security.credential.provider.path": "jceks://f"}, r"is jceks://f, which only"),
        (S3, {"fs.s3a.bucket.b.accesspoint.arn": "arn:aws:s3:x"}, r"alias of the access point as the bucket"),
        (
            S3,
            {"hadoop.security.credential.provider.path": "jceks://hdfs@user:hush@nn/x"},
            r"is jceks://\*\*\*@nn/x, which only Java",
        ),
        (S3, {"fs.s3a.encryption.algorithm": "CSE-KMS"}, r"is CSE-KMS\. Python cannot read.*SSE-KMS"),
        (S3, {"fs.s3a.encryption.algorithm": "SSE-C"}, r"is SSE-C, and fs\.s3a\.encryption\.key"),
        (AZURE, {"hadoop.security.credential.provider.path": "jceks://f"}, r"AZURE_STORAGE_ACCOUNT_KEY"),
        (GCS, {"hadoop.security.credential.provider.path": "jceks://f"}, r"GOOGLE_APPLICATION_CREDENTIALS"),
        (AZURE, {"fs.azure.account.auth.type": "Custom"}, r"auth\.type is Custom, which only Java"),
        (AZURE, {"fs.azure.account.auth.type": "SAS"}, r"is SAS, and fs\.azure\.sas\.fixed\.token"),
        (
            AZURE,
            {"fs.azure.account.auth.type": "SAS", "fs.azure.sas.token.provider.type": "com.acme.Tokens"},
            r"com\.acme\.Tokens, which only Java",
        ),
        (AZURE, {f"fs.azure.account.keyprovider.{HOST}": "x.ShellDecryptionKeyProvider"}, r"only Java"),
        (AZURE, OAUTH, r"is OAuth, and fs\.azure\.account\.oauth\.provider\.type"),
        (AZURE, {**OAUTH, OAUTH_PROVIDER: "x.UserPasswordTokenProvider"}, r"only Java.*AZURE_CLIENT_SECRET"),
        (
            AZURE,
            {
                **OAUTH,
                OAUTH_PROVIDER: "x.WorkloadIdentityTokenProvider",
                "fs.azure.account.oauth2.client.assertion.provider.type": "com.acme.Assertions",
            },
            r"com\.acme\.Assertions, which only Java",
        ),
        (AZURE, {**CLIENT, "fs.azure.account.oauth2.client.secret": ""}, r"oauth2\.client\.secret, which it"),
        (AZURE, {**CLIENT, "fs.azure.account.oauth2.client.endpoint": "hush"}, r"must be https://login"),
        (GCS, {"fs.gs.auth.type": "ACCESS_TOKEN_PROVIDER"}, r"only Java.*service\.account\.json\.keyfile"),
        (GCS, {"fs.gs.auth.service.account.keyfile": "/k.p12"}, r"/k\.p12, which only Java"),
        (GCS, {"fs.gs.auth.impersonation.service.account": "e@x"}, r"only Java"),
        (GCS, {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE"}, r"json\.keyfile, which it needs"),
    ],
)
def test_what_only_java_has_or_lacks_a_part_is_refused(
    location: str, keys: dict[str, str], told: str
) -> None:
    with pytest.raises(InvalidConfig, match=told) as e:
        settings(location, keys)
    assert "hush" not in str(e.value)


PEM = "-----BEGIN PRIVATE KEY----- aHVzaA== hush"
"""In one line, as a configuration may have it."""


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (
            json.dumps({"client_email": "e", "private_key_id": "7", "private_key": PEM}),
            r"pem file: .*: \.\.\.",
        ),
        ('"hush"', r"invalid type: string \.\.\., expected struct"),
    ],
)
def test_an_unreadable_key_file_is_not_in_the_error(file: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text(file)
    with pytest.raises(LoadError, match=rf"cannot open gs://b/x: .*{told}") as e:
        object_clients._open(address_of(GCS), {"service_account": str(path)}, GCS)
    assert "hush" not in str(e.value)
    assert ", ".join(map(str, b"hush")) not in str(e.value)


@pytest.mark.parametrize(
    ("location", "environment", "expected"),
    [
        (
            S3,
            {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ENDPOINT_URL_S3": "http://h:2"},
            {"endpoint": "http://h:2"},
        ),
        (AZURE, {"AZURE_STORAGE_ENDPOINT": "http://h:1/a"}, {"endpoint": "http://h:1/a"}),
        (AZURE, {}, {}),
        (
            "abfss://c@a.dfs.core.usgovcloudapi.net/x",
            {},
            {"endpoint": "https://a.blob.core.usgovcloudapi.net"},
        ),
        (GCS, {"GOOGLE_BASE_URL": "http://h:1"}, {"base_url": "http://h:1"}),
    ],
)
def test_another_endpoint_is_found_in_the_environment_and_in_the_host(
    location: str, environment: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(object_clients, "_open", lambda address, settings, location: opened.append(settings))
    monkeypatch.setattr(object_clients, "_clients", {})
    monkeypatch.setattr(object_clients, "_opened_in", 0)
    monkeypatch.setattr(object_clients, "_given", {})
    for names in object_clients._ENDPOINTS.values():
        for name in names[1:]:
            monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    object_clients.client(address_of(location), location)
    assert opened == [expected]
