"""Apache Kafka with a listener where clients must log in, and with listeners of TLS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.foreign.apache_kafka import QUICK, ApacheKafka
from tests.support.foreign.ports import free_ports
from tests.support.network.certificates import Authority

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"

_SIGNED = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"

USER, PASSWORD = "alice", "alice-secret"


class SaslKafka(ApacheKafka):
    """*Not thread-safe.* `client_servers` is the listener with logins: SASL_PLAINTEXT, host ``localhost``.

    Its tokens of OAUTHBEARER need no signature, unless it has ``keys``. Sessions last ``session_ms``.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        session_ms: int = 0,
        kerberos: Mapping[str, str] | None = None,
        java_options: tuple[str, ...] = (),
        keys: str | None = None,
    ) -> None:
        """``kerberos``: options of the broker's Kerberos login, which GSSAPI needs. ``keys``: the URL of the
        keys that tokens are signed with.
        """
        inside, controller, outside = free_ports(3)
        self.client_servers = f"localhost:{outside}"
        mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
        jaas = {
            "plain": f'{PLAIN} required user_{USER}="{PASSWORD}";',
            "scram-sha-256": f"{SCRAM} required;",
            "scram-sha-512": f"{SCRAM} required;",
            "oauthbearer": f"{OAUTH} required;",
        }
        if kerberos is not None:
            mechanisms.append("GSSAPI")
            options = " ".join(f'{key}="{value}"' for key, value in kerberos.items())
            jaas["gssapi"] = f"{KERBEROS} required {options};"
        client = "listener.name.client"
        signed: dict[str, str] = {}
        if keys is not None:
            signed = {
                f"{client}.oauthbearer.sasl.server.callback.handler.class": _SIGNED,
                f"{client}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys,
            }
            java_options = (*java_options, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}")
        super().__init__(
            jars,
            directory,
            options=(*QUICK, *java_options),
            scram_users=[f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)],
            **{
                "listeners": f"PLAINTEXT://127.0.0.1:{inside},CONTROLLER://127.0.0.1:{controller},"
                f"CLIENT://localhost:{outside}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{inside},CLIENT://{self.client_servers}",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "CLIENT:SASL_PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "connections.max.reauth.ms": str(session_ms),
                f"{client}.sasl.enabled.mechanisms": ",".join(mechanisms),
                "sasl.kerberos.service.name": "kafka",
                **{f"{client}.{name}.sasl.jaas.config": entry for name, entry in jaas.items()},
                **signed,
            },
        )
        self.bootstrap_servers = f"127.0.0.1:{inside}"


class TlsKafka(ApacheKafka):
    """*Not thread-safe.* `servers` has the listeners TLS, MUTUAL (it wants clients' certificates) and LOGIN
    (SASL_SSL with PLAIN), all of host ``localhost``, and PLAINTEXT.
    """

    def __init__(
        self, jars: Path, directory: Path, authority: Authority, *, options: Sequence[str] = QUICK
    ) -> None:
        inside, controller, *outside = free_ports(5)
        named = dict(zip(("TLS", "MUTUAL", "LOGIN"), outside, strict=True))
        self.servers = {name: f"localhost:{port}" for name, port in named.items()}
        advertised = [f"{name}://{address}" for name, address in self.servers.items()]
        super().__init__(
            jars,
            directory,
            options=options,
            **{
                "listeners": ",".join(
                    [
                        f"PLAINTEXT://127.0.0.1:{inside}",
                        f"CONTROLLER://127.0.0.1:{controller}",
                        *advertised,
                    ]
                ),
                "advertised.listeners": ",".join([f"PLAINTEXT://127.0.0.1:{inside}", *advertised]),
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "TLS:SSL,MUTUAL:SSL,LOGIN:SASL_SSL",
                "inter.broker.listener.name": "PLAINTEXT",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(authority.issue("kafka", "localhost")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(authority.file),
                "listener.name.mutual.ssl.client.auth": "required",
                "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} required user_{USER}="{PASSWORD}";',
            },
        )
        self.bootstrap_servers = f"127.0.0.1:{inside}"
        self.servers["PLAINTEXT"] = self.bootstrap_servers
