"""Credentials and endpoints of ledgers' stores from Spark's own keys, for the driver and for tasks.

Where Spark's keys name none, `object_clients` finds those of the environment or the machine's role. A task
cannot read Spark's configuration: it has them in its Python worker's environment, never in an option or plan.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.stores.locations import is_remote
from pyspark_kafkalog.stores.object_clients import SETTINGS_VARIABLE, Address, address_of, give_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_AMBIENT = re.compile(
    r"(Default|EnvironmentVariable|ContainerCredentials|InstanceProfile|IAMInstance|WebIdentityToken\w*)"
    r"(AWS)?Credentials?Provider(Chain)?(V2)?|EnvironmentVariableCredentialsProvider"
)
_FROM_KEYS = re.compile(r"(Simple|Temporary)AWSCredentialsProvider")


def hand_over(spark: SparkSession, location: str) -> None:
    """Give what Spark's keys say of a ledger's store to this process and to the tasks of this session.

    Raises:
        InvalidConfig: the keys name a provider of credentials that exists in Java only.
    """
    if not is_remote(location):
        return
    address = address_of(location)
    settings = _settings(address, lambda key: spark.conf.get(f"spark.hadoop.{key}", None))
    if not settings:
        return
    text = give_settings(address, settings)
    # A client of Spark Connect has no context: executors then need the environment.
    context = getattr(spark, "_sc", None)
    if context is not None:
        from pyspark_kafkalog.datasource.source import DefaultSource

        context.environment[SETTINGS_VARIABLE] = text
        spark.dataSource.register(DefaultSource)  # tasks get the environment of the registration


def _settings(address: Address, get: Callable[[str], str | None]) -> dict[str, Any]:
    if address.cloud == "azure":
        key = get(f"fs.azure.account.key.{address.root.partition('@')[2]}")
        return {} if key is None else {"account_key": key}
    if address.cloud != "s3":
        return {}

    def s3a(key: str) -> str | None:
        return get(f"fs.s3a.bucket.{address.root}.{key}") or get(f"fs.s3a.{key}")

    names = {
        "access_key_id": "access.key",
        "secret_access_key": "secret.key",
        "session_token": "session.token",
        "region": "endpoint.region",
    }
    settings: dict[str, Any] = {name: value for name, key in names.items() if (value := s3a(key))}
    _check_provider(s3a("aws.credentials.provider"), has_keys="secret_access_key" in settings)
    if "secret_access_key" not in settings and get("hadoop.security.credential.provider.path"):
        raise InvalidConfig(
            "hadoop.security.credential.provider.path names a keystore that only Java can read: for the "
            "ledger's store set spark.hadoop.fs.s3a.access.key and .secret.key, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY on the driver and the executors"
        )
    endpoint = s3a("endpoint")
    if endpoint:
        if "://" not in endpoint:
            scheme = "http" if (s3a("connection.ssl.enabled") or "").lower() == "false" else "https"
            endpoint = f"{scheme}://{endpoint}"
        if (s3a("path.style.access") or "").lower() != "true":
            endpoint = endpoint.replace("://", f"://{address.root}.", 1)
            settings["virtual_hosted_style_request"] = True
        settings["endpoint"] = endpoint
    return settings


def _check_provider(given: str | None, *, has_keys: bool) -> None:
    for name in (given or "").split(","):
        short = name.strip().rpartition(".")[2]
        if not short or _AMBIENT.fullmatch(short) or (has_keys and _FROM_KEYS.fullmatch(short)):
            continue
        raise InvalidConfig(
            f"spark.hadoop.fs.s3a.aws.credentials.provider is {name.strip()}, which only Java can use: for "
            "the ledger's store set spark.hadoop.fs.s3a.access.key and .secret.key, or AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY on the driver and the executors, and leave the provider out"
        )
