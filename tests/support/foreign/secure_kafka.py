"""Apache Kafka with a listener where clients must log in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.foreign.apache_kafka import ApacheKafka, free_ports

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"

USER, PASSWORD = "alice", "alice-secret"


class SaslKafka(ApacheKafka):
    """*Not thread-safe.* `client_servers` is the listener with logins: SASL_PLAINTEXT, host ``localhost``.

    Its tokens of OAUTHBEARER need no signature. Sessions last ``session_ms``.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        session_ms: int = 0,
        kerberos: Mapping[str, str] | None = None,
        java_options: tuple[str, ...] = (),
    ) -> None:
        """``kerberos``: options of the broker's Kerberos login, which GSSAPI needs."""
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
        super().__init__(
            jars,
            directory,
            options=("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *java_options),
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
            },
        )
        self.bootstrap_servers = f"127.0.0.1:{inside}"
