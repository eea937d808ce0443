"""Users' SCRAM credentials: lookups and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kafkalog_broker.security.security_file import Kept, SecurityFile
from pyspark_kafkalog.security.scram import ScramCredential

Credentials = Mapping[str, Mapping[str, ScramCredential]]
"""By user name: the credentials by mechanism."""


class CredentialChange(NamedTuple):
    """Sets a credential, or removes it if None."""

    user: str
    mechanism: str
    credential: ScramCredential | None


class CredentialStore(Protocol):
    """*Thread-safe.* Durable storage of credentials."""

    def all(self) -> Credentials:
        """The current credentials. Cheap; never raises."""
        ...

    def change(self, changes: Sequence[CredentialChange]) -> None:
        """Make all changes or none, durably. Raises `KafkaError`."""
        ...


def lookup_in(store: CredentialStore) -> Callable[[str, str], ScramCredential | None]:
    return lambda mechanism, user: store.all().get(user, {}).get(mechanism)


class FileCredentials:
    """*Thread-safe.* Credentials in ``security.json``."""

    def __init__(self, file: SecurityFile) -> None:
        self._file = file
        self._parsed: tuple[object, Credentials] = (None, {})

    def all(self) -> Credentials:
        users = self._file.kept.users
        known, parsed = self._parsed
        if known is not users:
            parsed = {user: parse_all(texts) for user, texts in users.items()}
            self._parsed = (users, parsed)
        return parsed

    def change(self, changes: Sequence[CredentialChange]) -> None:
        def changed(kept: Kept) -> Kept:
            users = dict(kept.users)
            for change in changes:
                users[change.user] = changed_texts(users.get(change.user, {}), [change])
            return kept._replace(users={user: texts for user, texts in users.items() if texts})

        self._file.change(changed)


def changed_texts(texts: Mapping[str, str], changes: Iterable[CredentialChange]) -> dict[str, str]:
    found = dict(texts)
    for _, mechanism, credential in changes:
        if credential is None:
            found.pop(mechanism, None)
        else:
            found[mechanism] = credential.text()
    return found


def parse_all(texts: Mapping[str, str]) -> dict[str, ScramCredential]:
    """A user's credentials, without unreadable ones."""
    found = {}
    for mechanism, text in texts.items():
        try:
            found[mechanism] = ScramCredential.parse(text)
        except ValueError:
            continue  # the user cannot log in with this one
    return found
