"""Users' SCRAM credentials: who looks them up, and who changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kafkalog_broker.security.security_file import Kept, SecurityFile
from pyspark_kafkalog.security.scram import ScramCredential

Credentials = Mapping[str, Mapping[str, ScramCredential]]
"""By a user's name: its credentials by mechanism."""


class CredentialChange(NamedTuple):
    """One credential to be set, or removed where it is None."""

    user: str
    mechanism: str
    credential: ScramCredential | None


class CredentialStore(Protocol):
    """*Thread-safe.* Where credentials are kept durably."""

    def all(self) -> Credentials:
        """What is kept now. Cheap; raises nothing."""
        ...

    def change(self, changes: Sequence[CredentialChange]) -> None:
        """Make the changes, all or none; they are durable when this returns. Raises `KafkaError`."""
        ...


def lookup_in(store: CredentialStore) -> Callable[[str, str], ScramCredential | None]:
    """Finds the credential of a mechanism and a user."""
    return lambda mechanism, user: store.all().get(user, {}).get(mechanism)


class FileCredentials:
    """*Thread-safe.* Credentials in ``security.json``."""

    def __init__(self, file: SecurityFile) -> None:
        self._file = file
        self._parsed: tuple[object, Credentials] = (None, {})

    def all(self) -> Credentials:
        """Parsed when the file's content was replaced."""
        users = self._file.kept.users
        known, parsed = self._parsed
        if known is not users:
            parsed = {user: parse_all(texts) for user, texts in users.items()}
            self._parsed = (users, parsed)
        return parsed

    def change(self, changes: Sequence[CredentialChange]) -> None:
        """Raises `StorageError`: the disk refused."""

        def changed(kept: Kept) -> Kept:
            users = dict(kept.users)
            for change in changes:
                users[change.user] = changed_texts(users.get(change.user, {}), [change])
            return kept._replace(users={user: texts for user, texts in users.items() if texts})

        self._file.change(changed)


def changed_texts(texts: Mapping[str, str], changes: Iterable[CredentialChange]) -> dict[str, str]:
    """One user's credentials by mechanism, as text, after changes of that user."""
    found = dict(texts)
    for _, mechanism, credential in changes:
        if credential is None:
            found.pop(mechanism, None)
        else:
            found[mechanism] = credential.text()
    return found


def parse_all(texts: Mapping[str, str]) -> dict[str, ScramCredential]:
    """A user's credentials, those that can be read."""
    found = {}
    for mechanism, text in texts.items():
        try:
            found[mechanism] = ScramCredential.parse(text)
        except ValueError:
            continue  # the user cannot log in so; others can
    return found
