"""A Kerberos realm of its own: MIT's KDC as an ordinary process on a loopback port (Debian: krb5-kdc)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.ports import free_ports

REALM = "KAFKALOG.TEST"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")


class Realm:
    """*Not thread-safe.* Principals and their key tabs; ``environment`` is what clients need."""

    def __init__(self, directory: Path) -> None:
        """Raises `NotAvailable` where the programs are missing."""
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
        found = {name: shutil.which(name, path=path) for name in _PROGRAMS}
        missing = [name for name, program in found.items() if program is None]
        if missing:
            raise NotAvailable(f"no {', '.join(missing)} (Debian: krb5-kdc, krb5-admin-server)")
        self._programs = {name: str(program) for name, program in found.items()}
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        self.configuration = directory / "krb5.conf"
        self.configuration.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
        )
        (directory / "kdc.conf").write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{port}\n'
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n"
            f"  key_stash_file = {directory}/stash\n  max_life = 1h\n }}\n"
        )
        self.environment = {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory}/cache",
        }
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self._port = port
        self._kdc: subprocess.Popen[bytes] | None = None

    def keytab(self, principal: str) -> Path:
        """A principal's key tab; the principal is added the first time."""
        path = self._directory / (principal.replace("/", "_") + ".keytab")
        if path.exists():
            return path
        self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-q", f"ktadd -k {path} {principal}")
        return path

    def start(self) -> Realm:
        """Start the KDC, and wait until it listens."""
        with (self._directory / "kdc.log").open("wb") as log:
            self._kdc = subprocess.Popen(
                [self._programs["krb5kdc"], "-n", "-r", REALM],
                env=os.environ | self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 60).close()
                return self
            except OSError:
                if self._kdc.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self._directory / "kdc.log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop the KDC."""
        if self._kdc is not None:
            self._kdc.kill()  # nothing of it is kept
            self._kdc.wait()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs[program], *arguments], env=os.environ | self.environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
