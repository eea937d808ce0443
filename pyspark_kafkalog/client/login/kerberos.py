"""GSSAPI: a Kerberos login with the package gssapi (extra ``kerberos``). Source: RFC 4752."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from pyspark_kafkalog.errors import AuthenticationFailed, InvalidConfig
from pyspark_kafkalog.security.files import found_file

_NO_LAYER = 1
"""We use no security layer; TLS protects the connection."""


@dataclass(frozen=True)
class Identity:
    """*Thread-safe: immutable.* Client and service; without ``keytab`` the ticket cache decides."""

    service: str
    principal: str | None
    keytab: str | None
    ticket_cache: str | None
    option: str


def converse(identity: Identity, host: str) -> Generator[bytes, bytes, None]:
    """The conversation with ``host``, whose principal is ``service/host``."""
    gssapi = _library()
    try:
        name = gssapi.Name(f"{identity.service}@{host}", gssapi.NameType.hostbased_service)
        flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
        context = gssapi.SecurityContext(
            name=name, creds=_credentials(gssapi, identity), usage="initiate", flags=flags
        )
        token = context.step()
        while not context.complete:
            token = context.step((yield token or b""))
        offer = context.unwrap((yield token or b"")).message
        if len(offer) != 4 or not offer[0] & _NO_LAYER:
            raise AuthenticationFailed("GSSAPI: the broker wants a security layer; use SASL_SSL")
        reply = bytes((_NO_LAYER, 0, 0, 0)) + str(context.initiator_name).encode()
        yield context.wrap(reply, False).message
    except gssapi.exceptions.GSSError as e:
        raise AuthenticationFailed(
            f"GSSAPI: no Kerberos login to {identity.service}/{host}: {' '.join(str(e).split())}; check "
            f"{identity.option} and that the client has a key tab or a ticket (kinit)"
        ) from None


def _credentials(gssapi: Any, identity: Identity) -> Any:
    """The client's credentials; with a key tab, in a memory cache of this process."""
    name = None
    if identity.principal:
        name = gssapi.Name(identity.principal, gssapi.NameType.kerberos_principal)
    if identity.keytab:
        keytab = found_file(identity.keytab, identity.option)
        store = {"client_keytab": f"FILE:{keytab}", "ccache": "MEMORY:pyspark-kafkalog"}
        if identity.principal:
            store["ccache"] += "-" + identity.principal.replace("/", "_")
        return gssapi.Credentials(usage="initiate", name=name, store=store)
    if identity.ticket_cache:
        return gssapi.Credentials(
            usage="initiate", name=name, store={"ccache": f"FILE:{identity.ticket_cache}"}
        )
    return gssapi.Credentials(usage="initiate", name=name)


def _library() -> Any:
    try:
        import gssapi
    except (ImportError, OSError):
        raise InvalidConfig(
            "sasl.mechanism=GSSAPI needs the package gssapi and the system's Kerberos library: "
            "pip install 'pyspark-kafkalog[kerberos]' (to build it: libkrb5-dev and a C compiler)"
        ) from None
    return gssapi
