"""``add-user``: creates SCRAM users of a broker that is not running."""

from __future__ import annotations

import argparse
import getpass
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from kafkalog_broker.cli.commands import DONE, Commands, add_command, zookeeper_session
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.config.listener_config import SCRAM_SHA_256, SCRAM_SHA_512
from kafkalog_broker.disk.data_directory import LOCK_NAME
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.security.file_stores import CredentialChange, FileCredentials, SecurityFile
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.scram import MIN_ITERATIONS, ScramCredential

_SALT_BYTES = 24
_MAX_ITERATIONS = 16_384
_EXAMPLES = """\
examples:
  python -m kafkalog_broker add-user server.properties admin
      asks for the password
  python -m kafkalog_broker add-user server.properties admin --mechanism SCRAM-SHA-256 < password.txt

Of a broker that runs, users are made through its clients, as kafka-configs does it. Users that brokers share
in ZooKeeper can also be made here at any time.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "add-user", _run,
        summary="give a user a password, while the broker does not run",
        description="Keep a user's SCRAM credential, made from a password on standard input, in the data "
            "directory of a broker that does not run, or in ZooKeeper. A user's older password is replaced.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("properties", type=Path, metavar="FILE", help="the broker's server.properties")
    parser.add_argument("user", metavar="USER")
    parser.add_argument(
        "--mechanism", action="append", choices=(SCRAM_SHA_256, SCRAM_SHA_512),
        help="may be repeated (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--iterations", type=int, default=MIN_ITERATIONS, metavar="N",
        help=f"{MIN_ITERATIONS} (the default) to {_MAX_ITERATIONS}: what a guess costs",
    )  # fmt: skip


def _run(options: argparse.Namespace) -> int:
    config = BrokerConfig.load(options.properties, {})
    if not MIN_ITERATIONS <= options.iterations <= _MAX_ITERATIONS:
        raise InvalidConfig(f"--iterations {options.iterations}: {MIN_ITERATIONS} to {_MAX_ITERATIONS}")
    mechanisms = options.mechanism or [SCRAM_SHA_256, SCRAM_SHA_512]
    password = _password(options.user)
    changes = _changes(options.user, password, mechanisms, options.iterations)
    if config.shares_credentials:
        _share(config, changes)
    else:
        _keep(config.directories(), changes)
    sys.stdout.write(f"{options.user} can log in with {' and '.join(mechanisms)}\n")
    return DONE


def _password(user: str) -> str:
    """Read it from the terminal or standard input; the command line is visible to all users."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"password of {user}: ")
        if getpass.getpass("again: ") != password:
            raise InvalidConfig("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidConfig(f"no password for {user} on standard input")
    return password


def add_user(
    directories: Sequence[Path], user: str, password: str, mechanisms: Sequence[str], iterations: int
) -> None:
    """Store credentials in the first data directory. Raises `InvalidConfig`: a broker runs, or no user."""
    _keep(directories, _changes(user, password, mechanisms, iterations))


def _changes(user: str, password: str, mechanisms: Sequence[str], iterations: int) -> list[CredentialChange]:
    if not user:
        raise InvalidConfig("a user needs a name")
    return [
        CredentialChange(
            user,
            mechanism,
            ScramCredential.of_password(
                mechanism, password, salt=secrets.token_bytes(_SALT_BYTES), iterations=iterations
            ),
        )
        for mechanism in mechanisms
    ]


def _share(config: BrokerConfig, changes: Sequence[CredentialChange]) -> None:
    from kafkalog_broker.security.zookeeper_stores import (
        ZooKeeperUsers,  # without ZooKeeper its client is not loaded
    )
    from pyspark_kafkalog.zookeeper.paths import JsonLayout

    with zookeeper_session(config) as session:
        users = ZooKeeperUsers(session, JsonLayout(config.zookeeper_prefix))
        users.connect()
        users.change(changes)


def _keep(directories: Sequence[Path], changes: Sequence[CredentialChange]) -> None:
    files = FileSystem()
    directories[0].mkdir(parents=True, exist_ok=True)
    try:
        held = files.lock(directories[0] / LOCK_NAME)
    except BlockingIOError:
        raise InvalidConfig(
            f"a broker runs on {directories[0]}: stop it, or make the user through one of its clients"
        ) from None
    try:
        file = SecurityFile(directories, files)
        file.load()
        FileCredentials(file).change(changes)
    finally:
        held.close()
