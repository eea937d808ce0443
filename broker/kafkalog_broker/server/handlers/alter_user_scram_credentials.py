"""AlterUserScramCredentials 0: sets and removes SCRAM credentials; they are durable when it is answered.

As in Kafka of ZooKeeper's time both mechanisms of one user may be in one request. What is wrong with one
change of a user refuses all changes of that user, and of no other.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from kafkalog_broker.security.credentials import Change
from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.logins import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.security.scram import MECHANISMS, MIN_ITERATIONS, ScramCredential
from pyspark_kafkalog.steps import Steps

NUMBERS = {name: number for number, name in enumerate(MECHANISMS, 1)}
"""The mechanisms as the wire numbers them."""

_NAMES = {number: name for name, number in NUMBERS.items()}
_MAX_ITERATIONS = 16_384
_MAX_SALT_BYTES = 1024


class Refused(KafkaError):
    """A change that is not made, in Kafka's words."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@handles(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), needs=((Operation.ALTER, ResourceType.CLUSTER),)
)
def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, ctx: Context
) -> Steps[AlterUserScramCredentialsResponse]:
    """One result for each user. The disk is waited for in another thread."""
    wanted: list[ScramCredentialDeletion | ScramCredentialUpsertion]
    wanted = [*request.deletions, *request.upsertions]
    times = Counter((each.name, each.mechanism) for each in wanted)
    refused: dict[str, KafkaError] = {}
    changes: list[Change] = []
    try:
        ctx.demand(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as e:
        users = dict.fromkeys(each.name for each in wanted)
        return AlterUserScramCredentialsResponse(results=tuple(_result(user, e, ctx) for user in users))
    for each in wanted:
        try:
            if times[each.name, each.mechanism] > 1:
                raise Refused(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            changes.append(_change(each, ctx))
        except KafkaError as e:
            refused.setdefault(each.name, e)
    changes = [change for change in changes if change.user not in refused]
    if changes:
        try:
            yield partial(ctx.services.credentials.change, changes)
        except KafkaError as e:
            refused |= {change.user: e for change in changes}
    return AlterUserScramCredentialsResponse(
        results=tuple(_result(user, refused.get(user), ctx) for user in dict.fromkeys(e.name for e in wanted))
    )


def _change(wanted: ScramCredentialDeletion | ScramCredentialUpsertion, ctx: Context) -> Change:
    """Raises `Refused`, with Kafka's codes and words."""
    user, mechanism = wanted.name, _NAMES.get(wanted.mechanism)
    if not user:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is None:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(wanted, ScramCredentialDeletion):
        if mechanism not in ctx.services.credentials.all().get(user, {}):
            raise Refused(
                ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
            )
        return Change(user, mechanism, None)
    if wanted.iterations < MIN_ITERATIONS:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > _MAX_ITERATIONS:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not wanted.salted_password or not 0 < len(wanted.salt) <= _MAX_SALT_BYTES:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"salt of 1 to {_MAX_SALT_BYTES} bytes and a salted password"
        )
    credential = ScramCredential.of_salted(
        mechanism, bytes(wanted.salted_password), bytes(wanted.salt), wanted.iterations
    )
    return Change(user, mechanism, credential)


def _result(user: str, error: KafkaError | None, ctx: Context) -> AlterUserScramCredentialsResult:
    if error is None:
        return AlterUserScramCredentialsResult(user, ErrorCode.NONE, None)
    return AlterUserScramCredentialsResult(user, ctx.refused(error), str(error))
