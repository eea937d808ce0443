"""``secure-init``: creates a directory with everything for a broker with TLS and logins."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from pathlib import Path

from kafkalog_broker.cli.add_user import add_user
from kafkalog_broker.cli.commands import DONE, Commands, add_command, say
from kafkalog_broker.config.listener_config import SCRAM_SHA_256, SCRAM_SHA_512
from kafkalog_broker.security.authority import make
from pyspark_kafkalog.config.properties import format_properties
from pyspark_kafkalog.errors import InvalidConfig

_ADMIN = "admin"
_ITERATIONS = 8192
_EXAMPLES = """\
examples:
  python -m kafkalog_broker secure-init /srv/kafkalog --host kafka.example.org
  python -m kafkalog_broker start /srv/kafkalog/server.properties
  kafka-topics --list --bootstrap-server kafka.example.org:9093 \\
    --command-config /srv/kafkalog/admin.properties

DIR then has ca.pem (clients trust it), ca.key (signs more certificates; keep it elsewhere), server.pem (the
broker's key and certificate), server.properties (what is printed), admin.properties (how the admin logs in)
and data. Clients of other machines need ca.pem, and a user and password of their own.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "secure-init", _run,
        summary="make certificates, an admin and the properties of a secure broker",
        description="Make a certificate authority, a certificate and an admin for a new broker in DIR, and "
            "print the properties that it needs. Nothing that is there is replaced.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("directory", type=Path, metavar="DIR", help="a new or empty directory")
    parser.add_argument(
        "--host", action="append", default=[], metavar="NAME",
        help="a name or address by which clients reach the broker; the first is advertised; may be repeated "
            "(default: localhost; 127.0.0.1, ::1 and this machine's name are always in the certificate)",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=9093, help="where it listens (default: 9093)")


def _run(options: argparse.Namespace) -> int:
    directory: Path = options.directory.absolute()
    if directory.exists() and any(directory.iterdir()):
        raise InvalidConfig(f"{directory} is not empty: nothing is replaced")
    if not 0 < options.port < 65536:
        raise InvalidConfig(f"--port {options.port}: 1 to 65535")
    advertised = options.host[0] if options.host else "localhost"
    hosts = [*options.host, "localhost", "127.0.0.1", "::1", socket.gethostname()]
    made = make(list(dict.fromkeys(hosts)))
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "ca.pem", made.ca_certificate, 0o644)
    _write(directory / "ca.key", made.ca_key)
    _write(directory / "server.pem", made.server)
    password = secrets.token_urlsafe(24)
    mechanisms = (SCRAM_SHA_512, SCRAM_SHA_256)
    add_user([directory / "data"], _ADMIN, password, mechanisms, _ITERATIONS)
    server = format_properties(server_properties(directory, advertised, options.port, local=not options.host))
    _write(directory / "server.properties", server.encode(), 0o644)
    _write(directory / "admin.properties", format_properties(_client(directory, password)).encode())
    sys.stdout.write(server)
    say(f"start it with: {sys.executable} -m kafkalog_broker start {directory / 'server.properties'}")
    return DONE


def server_properties(directory: Path, advertised: str, port: int, *, local: bool) -> dict[str, str]:
    shown = f"[{advertised}]" if ":" in advertised else advertised
    return {
        "listeners": f"CLIENT://{'127.0.0.1' if local else ''}:{port}",
        "advertised.listeners": f"CLIENT://{shown}:{port}",
        "listener.security.protocol.map": "CLIENT:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "server.pem"),
        "sasl.enabled.mechanisms": f"{SCRAM_SHA_512},{SCRAM_SHA_256}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{_ADMIN}",
        "log.dirs": str(directory / "data"),
    }


def _client(directory: Path, password: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": SCRAM_SHA_512,
        "sasl.jaas.config": f'{module} required username="{_ADMIN}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
    }


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create a file that has this mode from the start."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
