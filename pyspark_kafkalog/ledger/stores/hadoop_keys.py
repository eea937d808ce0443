"""Translates Hadoop's keys of S3A, ABFS and the GCS connectors to obstore's settings; without credentials in
them the environment or the machine's role provides some. Source: Hadoop 3.5 ``S3AUtils``,
``AbfsConfiguration``, ``AzureBlobFileSystemStore``; gcs-connector 3 ``HadoopCredentialsConfiguration``;
obstore 0.11.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.stores.object_clients import INSTEAD, StoreAddress

Get = Callable[[str], str | None]

HadoopSettings = dict[str, Any]


def settings_of(address: StoreAddress, get: Get) -> HadoopSettings:
    """A bucket's settings; empty without keys. `InvalidConfig`: a part is missing, or only Java has it."""

    def trimmed(key: str) -> str | None:
        return (get(key) or "").strip() or None

    return {"s3": _s3, "azure": _azure, "gs": _gcs}[address.cloud](address, trimmed)


def _only_java(key: str, value: str, instead: str) -> InvalidConfig:
    return InvalidConfig(
        f"{key} is {masked(value)}, which only Java can use. Python reads ledgers and lists the files of "
        f"loads: set {instead} on the driver and the executors, and leave {key} out"
    )


def _missing(key: str, value: str, needed: str) -> InvalidConfig:
    return InvalidConfig(f"{key} is {value}, and {needed}, which it needs, is not set")


_KEYSTORE = "hadoop.security.credential.provider.path"


def _of_environment(get: Get, instead: str) -> HadoopSettings:
    """No credentials, as no key names any, nor a keystore that may hold them."""
    keystore = get(_KEYSTORE)
    if keystore:
        raise _only_java(_KEYSTORE, keystore, instead)
    return {}


# --- Amazon S3

_AMBIENT = re.compile(
    r"(Default|EnvironmentVariable|ContainerCredentials|InstanceProfile|IAMInstance|WebIdentityToken\w*)"
    r"(AWS)?Credentials?Provider(Chain)?(V2)?|EnvironmentVariableCredentialsProvider"
)
_AWS_HOST = re.compile(
    r"s3(?P<special>-fips)?(?P<dual>\.dualstack)?(?:[.-](?P<region>[a-z]+(?:-[a-z]+)+-\d+))?\.amazonaws\.com(?:\.cn)?/?"
)


def _s3(address: StoreAddress, get: Get) -> HadoopSettings:
    def s3a(key: str) -> str | None:
        return get(f"fs.s3a.bucket.{address.root}.{key}") or get(f"fs.s3a.{key}")

    access_point = s3a("accesspoint.arn")
    if access_point:
        raise InvalidConfig(
            f"fs.s3a.bucket.{address.root}.accesspoint.arn is {access_point}, which Python cannot use: name "
            "the alias of the access point as the bucket, s3a://ALIAS/path, and leave the key out"
        )
    settings = {**_s3_credentials(s3a, get), **_s3_encryption(s3a)}
    endpoint, region = (s3a("endpoint") or "").rstrip("/"), s3a("endpoint.region")
    of_aws = _AWS_HOST.fullmatch(endpoint.partition("://")[2] or endpoint)
    region = region or (of_aws["region"] if of_aws else None)
    # obstore derives the plain AWS hosts from the region.
    if endpoint and (of_aws is None or of_aws["special"] or of_aws["dual"]):
        if "://" not in endpoint:
            scheme = "http" if (s3a("connection.ssl.enabled") or "").lower() == "false" else "https"
            endpoint = f"{scheme}://{endpoint}"
        if (s3a("path.style.access") or "").lower() != "true":
            endpoint = endpoint.replace("://", f"://{address.root}.", 1)
            settings["virtual_hosted_style_request"] = True
        settings["endpoint"] = endpoint
    if region:
        settings["region"] = region
    return settings


def _s3_credentials(s3a: Get, get: Get) -> HadoopSettings:
    """Those of the first provider in the list that has any, like S3A."""
    names = {
        "access_key_id": "access.key",
        "secret_access_key": "secret.key",
        "session_token": "session.token",
    }
    keys: HadoopSettings = {name: value for name, key in names.items() if (value := s3a(key))}
    has_keys = keys.keys() >= {"access_key_id", "secret_access_key"}
    given = s3a("aws.credentials.provider")
    from_environment = False
    if given is None:
        if has_keys:
            return keys
        keystore = s3a("security.credential.provider.path")
        if keystore:
            raise _only_java("fs.s3a.security.credential.provider.path", keystore, INSTEAD["s3"])
        return _of_environment(get, INSTEAD["s3"])
    for provider in filter(None, (name.strip() for name in given.split(","))):
        name = provider.rpartition(".")[2]
        if _AMBIENT.fullmatch(name):
            if not name.startswith("EnvironmentVariable") or "AWS_ACCESS_KEY_ID" in os.environ:
                return {}
            from_environment = True  # perhaps that of the executors, if nothing follows
            continue
        if name == "AnonymousAWSCredentialsProvider":
            return {"skip_signature": True}
        if name == "TemporaryAWSCredentialsProvider":
            if has_keys and "session_token" in keys:
                return keys
        elif name == "SimpleAWSCredentialsProvider":
            if has_keys:
                return {name: value for name, value in keys.items() if name != "session_token"}
        else:
            raise _only_java("fs.s3a.aws.credentials.provider", provider, INSTEAD["s3"])
    if from_environment:
        return {}
    needed = "fs.s3a.access.key, fs.s3a.secret.key or, for temporary keys, fs.s3a.session.token"
    raise _missing("fs.s3a.aws.credentials.provider", given, needed)


_ENCRYPTIONS = {"SSE-S3": "AES256", "AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}


def _s3_encryption(s3a: Get) -> HadoopSettings:
    """Encryption of the objects we write: a bucket may refuse another than Spark's."""
    named = "fs.s3a.encryption.algorithm"
    method = s3a("encryption.algorithm") or s3a("server-side-encryption-algorithm")
    key = s3a("encryption.key") or s3a("server-side-encryption.key")
    if method is None:
        return {}
    if method == "SSE-C":
        if not key:
            raise _missing(named, method, "fs.s3a.encryption.key")
        return {"server_side_encryption": "sse-c", "sse_customer_key_base64": key}
    if method not in _ENCRYPTIONS:
        raise InvalidConfig(
            f"{named} is {method}. Python cannot read what Java encrypts before it is sent; use SSE-S3, "
            "SSE-KMS, DSSE-KMS or SSE-C, or leave the encryption to the bucket"
        )
    settings: HadoopSettings = {"server_side_encryption": _ENCRYPTIONS[method]}
    if key and "KMS" in method:
        settings["sse_kms_key_id"] = key
    return settings


# --- Azure


def _azure(address: StoreAddress, get: Get) -> HadoopSettings:
    container, _, host = address.root.partition("@")

    def of_account(key: str) -> str | None:
        return get(f"{key}.{container}.{host}") or get(f"{key}.{host}") or get(key)

    settings = _azure_credentials(of_account, get)
    endpoint = get("fs.azure.abfs.endpoint") or ""
    if ":" in endpoint:  # an address for tests: the account is then part of the path
        scheme = "http" if (get("fs.azure.always.use.https") or "").lower() == "false" else "https"
        settings["endpoint"] = f"{scheme}://{endpoint}/{host.partition('.')[0]}"
    return settings


def _azure_credentials(of_account: Get, get: Get) -> HadoopSettings:
    kind = of_account("fs.azure.account.auth.type") or "SharedKey"
    if kind == "SharedKey":
        provider = of_account("fs.azure.account.keyprovider")
        if provider and provider.rpartition(".")[2] != "SimpleKeyProvider":
            raise _only_java("fs.azure.account.keyprovider", provider, INSTEAD["azure"])
        key = of_account("fs.azure.account.key")
        if key:
            return {"credential_type": "access_key", "account_key": key}
        return _of_environment(get, INSTEAD["azure"])
    if kind == "SAS":
        provider = of_account("fs.azure.sas.token.provider.type")
        token = of_account("fs.azure.sas.fixed.token")
        if provider and provider.rpartition(".")[2] != "FixedSASTokenProvider":
            raise _only_java("fs.azure.sas.token.provider.type", provider, INSTEAD["azure"])
        if not token:
            raise _missing("fs.azure.account.auth.type", kind, "fs.azure.sas.fixed.token")
        return {"credential_type": "sas_token", "sas_key": token.lstrip("?")}
    if kind == "OAuth":
        return _azure_oauth(of_account)
    raise _only_java("fs.azure.account.auth.type", kind, INSTEAD["azure"])


_TOKEN_FILE = "/var/run/secrets/azure/tokens/azure-identity-token"
"""Where Azure's workload identity webhook puts it; Hadoop's default."""


def _azure_oauth(of_account: Get) -> HadoopSettings:
    def oauth(key: str) -> str | None:
        return of_account(f"fs.azure.account.oauth2.{key}")

    def needed(key: str) -> str:
        value = oauth(key)
        if not value:
            raise _missing(named, str(provider), f"fs.azure.account.oauth2.{key}")
        return value

    named = "fs.azure.account.oauth.provider.type"
    provider = of_account(named)
    if not provider:
        raise _missing("fs.azure.account.auth.type", "OAuth", named)
    match provider.rpartition(".")[2]:
        case "ClientCredsTokenProvider":
            endpoint = needed("client.endpoint")
            parts = urlsplit(endpoint)
            tenant = parts.path.strip("/").partition("/")[0]
            if not parts.netloc or not tenant:
                raise InvalidConfig(
                    "fs.azure.account.oauth2.client.endpoint is no URL with a tenant; it must be "
                    "https://login.microsoftonline.com/TENANT/oauth2/token"
                )
            return {
                "credential_type": "client_secret",
                "client_id": needed("client.id"),
                "client_secret": needed("client.secret"),
                "tenant_id": tenant,
                "authority_host": f"{parts.scheme}://{parts.netloc}",
            }
        case "MsiTokenProvider":
            names = {"client_id": "client.id", "msi_endpoint": "msi.endpoint"}
            found = {name: value for name, key in names.items() if (value := oauth(key))}
            return {"credential_type": "managed_identity", **found}
        case "WorkloadIdentityTokenProvider":
            java = "client.assertion.provider.type"
            if value := oauth(java):
                raise _only_java(f"fs.azure.account.oauth2.{java}", value, INSTEAD["azure"])
            authority = oauth("msi.authority")
            return {
                "credential_type": "workload_identity",
                "client_id": needed("client.id"),
                "tenant_id": needed("msi.tenant"),
                "federated_token_file": oauth("token.file") or _TOKEN_FILE,
                **({"authority_host": authority.rstrip("/")} if authority else {}),
            }
    raise _only_java(named, provider, INSTEAD["azure"])


# --- Google Cloud Storage

_GCS_PREFIXES = ("fs.gs.auth.", "google.cloud.auth.")
_GCS_AMBIENT = ("COMPUTE_ENGINE", "APPLICATION_DEFAULT")


def _gcs(address: StoreAddress, get: Get) -> HadoopSettings:  # noqa: ARG001
    def auth(key: str) -> str | None:
        return next((value for prefix in _GCS_PREFIXES if (value := get(prefix + key))), None)

    settings = _gcs_credentials(auth, get)
    root = get("fs.gs.storage.root.url")
    if root and root.rstrip("/") != "https://storage.googleapis.com":
        settings["base_url"] = root.rstrip("/")
    return settings


def _gcs_credentials(auth: Get, get: Get) -> HadoopSettings:
    for key in (
        "impersonation.service.account", "access.token.provider.impl", "access.token.provider",
        "service.account.keyfile",
    ):  # fmt: skip
        value = auth(key)
        if value:
            raise _only_java(f"fs.gs.auth.{key}", value, INSTEAD["gs"])
    kind = auth("type")
    if kind == "UNAUTHENTICATED" or (auth("null.enable") or "").lower() == "true":
        return {"skip_signature": True}
    if kind in _GCS_AMBIENT or (auth("service.account.enable") or "").lower() == "false":
        return {}
    if kind not in (None, "SERVICE_ACCOUNT_JSON_KEYFILE"):
        raise _only_java("fs.gs.auth.type", str(kind), INSTEAD["gs"])
    file = auth("service.account.json.keyfile")
    if file:
        return {"service_account": file}
    if kind is not None:
        raise _missing("fs.gs.auth.type", kind, "fs.gs.auth.service.account.json.keyfile")
    names = {"client_email": "email", "private_key_id": "private.key.id", "private_key": "private.key"}
    parts = {name: value for name, key in names.items() if (value := auth(f"service.account.{key}"))}
    if parts.keys() == names.keys():
        parts["private_key"] = parts["private_key"].replace("\\n", "\n")
        return {"service_account_key": json.dumps({"type": "service_account", **parts})}
    return _of_environment(get, INSTEAD["gs"])
