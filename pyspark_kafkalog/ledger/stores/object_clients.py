"""This process's object-store clients, and their settings. obstore runs its own threads and hangs in a
process that was forked after its first use, so each process opens its own, and none is pickled.
"""

from __future__ import annotations

import json
import os
import re
import threading
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig, LoadError, UnsafeStore

_CLOUDS = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "azure", "abfss": "azure"}

OBJECT_SCHEMES = tuple(_CLOUDS)

INSTEAD = {
    "s3": "fs.s3a.access.key and fs.s3a.secret.key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "azure": "fs.azure.account.key.HOST, a fixed SAS token or OAuth with a client's secret, or "
    "AZURE_STORAGE_ACCOUNT_KEY or AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and AZURE_TENANT_ID",
    "gs": "fs.gs.auth.service.account.json.keyfile, or GOOGLE_APPLICATION_CREDENTIALS",
}

RETRY_VARIABLE = "KAFKALOG_STORE_RETRY_TIMEOUT_MS"
_NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
"""`ObjectStore` retries itself: obstore does so neither after a body that was cut, nor for writes."""

_REQUEST_TIMEOUT = timedelta(seconds=30)


def retry_timeout_s() -> float:
    """For how long requests are tried again after a failure: `RETRY_VARIABLE`, or a minute."""
    given = os.environ.get(RETRY_VARIABLE, "60000")
    if not given.isdecimal():
        raise InvalidConfig(f"{RETRY_VARIABLE} is {given!r}; it must be a number of milliseconds, 0 or more")
    return int(given) / 1000


def is_object_store(location: str) -> bool:
    scheme, found, _ = location.partition(":/")
    return bool(found) and scheme.lower() in OBJECT_SCHEMES


class StoreAddress(NamedTuple):
    """``root`` is a bucket, or container@host; ``prefix`` has no slash at its ends."""

    cloud: str
    root: str
    prefix: str


def address_of(location: str) -> StoreAddress:
    """The parts of a URL of `OBJECT_SCHEMES`; `UnsafeStore` if it has no bucket, or more than a path."""
    parts = urlsplit(location)
    scheme = parts.scheme.lower()
    shown = masked(location.partition("?")[0])
    if parts.query or parts.fragment or ":" in parts.netloc:
        raise UnsafeStore(
            f"{shown}: the URL of a store takes no user, port, query or fragment. Give credentials in the "
            "environment"
        )
    azure = _CLOUDS[scheme] == "azure"
    if not parts.netloc or azure != ("@" in parts.netloc):
        form = (
            f"{scheme}://container@account.dfs.core.windows.net/path" if azure else f"{scheme}://bucket/path"
        )
        raise UnsafeStore(f"{shown}: not the URL of a store; it must be {form}")
    prefix = parts.path.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise UnsafeStore(f"{shown}: a path in a store has no empty part and no . or ..")
    return StoreAddress(_CLOUDS[scheme], parts.netloc, prefix)


_LONG_REASON = 300
_CONTENT = re.compile(r'\[\d{1,3}(, \d{1,3})+\]?|(?<=invalid type: string )".*"|(?<=<Token-\d>)[^<\s]*')
"""Secrets in messages: a private key's bytes, an undecodable credentials file, S3's copy of a token."""

_BODY = re.compile(r"<Code>([^<]+)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_STATUS = re.compile(r"non-2xx status code: (\d+)")
_HTTP_ERROR = re.compile(r"HTTP error: [^\n]*")
_HTTP_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_KINDS = {"Timeout": "timed out", "Interrupted": "the connection was closed within the answer"}


def reason(error: BaseException) -> str:
    """What the store answered, else obstore's message without the dump of its error's structure; on one
    line, without secrets.
    """
    text, _, dump = str(error).partition("\n\nDebug source:")
    if body := _BODY.search(text):
        text = ": ".join(part for part in body.groups() if part)
    elif (kind := _HTTP_KIND.search(dump)) and kind[1] in _KINDS:
        text = _HTTP_ERROR.sub(_KINDS[kind[1]], text)
    text = re.sub(r"\s+", " ", text).strip()
    return masked(_CONTENT.sub("...", text)[:_LONG_REASON])


_REMEDIES = {
    "AccessDenied": "the login lacks a right that docs/stores.md lists, or the bucket's policy refuses it",
    "AuthorizationPermissionMismatch": "give the login the role that docs/stores.md names",
    "ExpiredToken": "get new temporary credentials, or use a role, which renews them",
    "SlowDown": "let fewer jobs use this bucket at once",
    "RequestTimeTooSkewed": "set this machine's clock",
}
"""By the code in S3's, Google's or Azure's answer."""

_NO_CREDENTIALS = re.compile(r"//169\.254\.169\.254/|//metadata(\.google\.internal)?/")
"""Where obstore asks for the role of the machine, after everything else."""

_NO_LOGIN = re.compile("token request|federated token|>InvalidAuthenticationInfo<")
"""In failures that obstore has no class for."""

_LOGIN_ATTEMPTS = 3


def remedy(error: BaseException, cloud: str) -> str:
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error)
    body = _BODY.search(text)
    if body and body[1] in _REMEDIES:
        return _REMEDIES[body[1]]
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _NO_LOGIN.search(text):
        return "check the credentials and what they allow"
    if isinstance(error, FileNotFoundError):
        return "check that the bucket or container exists"
    if _NO_CREDENTIALS.search(text):
        return (
            "no credentials were found in Spark's keys or the environment, and this machine has no role. "
            f"Set {INSTEAD[cloud]}"
        )
    return "check the store"


def may_pass(error: BaseException, failures: int) -> bool:
    """Whether a request that failed this many times, last with obstore's ``error``, may still succeed."""
    from obstore import exceptions as e

    final = (
        FileNotFoundError, e.InvalidPathError, e.NotSupportedError, e.PermissionDeniedError,
        e.UnauthenticatedError, e.UnknownConfigurationKeyError,
    )  # fmt: skip
    text = str(error)
    if isinstance(error, final) or "redirect without LOCATION" in text:  # of another region
        return False
    if status := _STATUS.search(text):
        return status[1][0] == "5" or status[1] in ("408", "409", "412", "429") or "RequestTimeout<" in text
    return failures < _LOGIN_ATTEMPTS or not (_NO_CREDENTIALS.search(text) or _NO_LOGIN.search(text))


_Settings = tuple[tuple[str, Any], ...]
_clients: dict[StoreAddress, tuple[_Settings, Any]] = {}
"""By bucket, with its settings: rotated credentials open another client in its place."""

_opened_in = 0
_opening = threading.Lock()


def client(address: StoreAddress, location: str) -> Any:
    """This process's client of a bucket. `LoadError` in a process that was forked after its first use."""
    global _opened_in
    address = address._replace(prefix="")
    settings = _settings(address)
    with _opening:
        if _opened_in not in (0, os.getpid()):
            raise LoadError(
                f"{location}: this process was forked from one that had opened a store, and cannot use it: "
                "start processes by spawn, or open ledgers in the new process only"
            )
        if address not in _clients or _clients[address][0] != settings:
            _clients[address] = settings, _open(address, dict(settings), location)
            _opened_in = os.getpid()
        return _clients[address][1]


def object_options(location: str) -> dict[str, str]:
    """A store's settings for other libraries upon Rust's ``object_store``; none for other places."""
    if not is_object_store(location):
        return {}
    address = address_of(location)
    settings = dict(_settings(address))
    is_plain = str(settings.get(_ENDPOINTS[address.cloud][0], "")).startswith("http:")
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
    return {**texts, **({"allow_http": "true"} if is_plain else {})}


def marker_client(address: StoreAddress, location: str, key: str) -> Any:
    """A client of S3 for the object ``<key>/`` by the name "": in obstore no name ends with a slash."""
    settings, inside = dict(_settings(address)), quote(key)
    if settings.get("virtual_hosted_style_request"):  # then the endpoint has the bucket
        settings["endpoint"] += f"/{inside}"
    return _open(address._replace(root=f"{address.root}/{inside}"), settings, location)


SETTINGS_VARIABLE = "KAFKALOG_STORES"
"""Environment variable of Python workers with the result of `give_settings` in the driver."""

_given: dict[str, dict[str, Any]] = {}


def give_settings(address: StoreAddress, settings: dict[str, Any]) -> str:
    """Use these settings for a bucket; returns all, with secrets, for other processes."""
    with _opening:
        _given[f"{address.cloud}:{address.root}"] = settings
        if not settings:
            del _given[f"{address.cloud}:{address.root}"]
        return json.dumps(_given, sort_keys=True)


_ENDPOINTS = {
    "s3": ("endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "azure": ("endpoint", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": ("base_url", "GOOGLE_BASE_URL"),
}

_AZURE_HOSTS = ("dfs.core.windows.net", "blob.core.windows.net")
"""Hosts of accounts in the public cloud, which obstore assumes; other clouds have other hosts."""


def _settings(address: StoreAddress) -> _Settings:
    """The given settings, and environment settings that obstore does not read itself."""
    here = f"{address.cloud}:{address.root}"
    given: dict[str, Any] | None = _given.get(here)
    if given is None:
        given = json.loads(os.environ.get(SETTINGS_VARIABLE) or "{}").get(here)
    settings = dict(given or {})
    setting, *variables = _ENDPOINTS[address.cloud]
    endpoint = next((value for name in variables if (value := os.environ.get(name))), None)
    host = address.root.rpartition("@")[2].partition(".")[2]
    if endpoint is None and address.cloud == "azure" and host not in _AZURE_HOSTS:
        endpoint = "https://" + address.root.rpartition("@")[2].replace(".dfs.", ".blob.", 1)
    if endpoint:
        settings.setdefault(setting, endpoint)
    parts = urlsplit(settings.get(setting) or "https://none")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        # obstore panics on an address without a scheme.
        name = next((name for name in variables if os.environ.get(name)), setting)
        raise LoadError(
            f"{name} is {masked(str(settings.get(setting)))}; it must be http:// or https:// and a host, "
            "without a user"
        )
    return tuple(sorted(settings.items()))


def _open(address: StoreAddress, settings: dict[str, Any], location: str) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError:
        raise UnsafeStore(
            f"{location}: a ledger in a cloud's store needs obstore: pip install 'pyspark-kafkalog[cloud]'"
        ) from None
    # A plain-HTTP endpoint is always deliberate.
    plain = settings.get(_ENDPOINTS[address.cloud][0], "").startswith("http:")
    options = {"allow_http": plain, "timeout": _REQUEST_TIMEOUT}
    given: dict[str, Any] = {**settings, "retry_config": _NO_RETRIES, "client_options": options}
    try:
        if address.cloud == "s3":
            # We remove one object at a time, and not every S3-compatible store supports bulk deletes.
            return S3Store(address.root, disable_bulk_delete=True, **given)
        if address.cloud == "gs":
            return GCSStore(address.root, **given)
        container, _, host = address.root.partition("@")
        return AzureStore(container, account_name=host.partition(".")[0], **given)
    except (BaseError, ValueError) as e:
        raise LoadError(f"cannot open {location}: {reason(e)}; check its settings") from None
