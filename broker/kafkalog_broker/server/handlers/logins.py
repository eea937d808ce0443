"""Refuse logins where they have no place; describe and alter the users of SCRAM.

API                           Versions  Left out
----------------------------  --------  --------
SaslHandshake                 0-1       nothing
SaslAuthenticate              0-2       nothing
DescribeUserScramCredentials  0         nothing
AlterUserScramCredentials     0         nothing

`kafkalog_broker.security.authentication` answers the requests of a login.

As in Kafka with ZooKeeper, one request may alter both mechanisms of a user. An error in one change of a user
refuses all changes of that user, and of no other.
"""

from __future__ import annotations

from collections import Counter

from kafkalog_broker.security.file_stores import CredentialChange
from kafkalog_broker.server.dispatch import Context, always, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api import logins as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.security.scram import MECHANISMS, MIN_ITERATIONS, ScramCredential


@handles(ApiKey.SASL_HANDSHAKE, (0, 1))
def sasl_handshake(request: api.SaslHandshakeRequest, ctx: Context) -> api.SaslHandshakeResponse:  # noqa: ARG001
    """Refuse a handshake on a listener without SASL, or after a login. Those that begin or renew a login are
    answered by the listener's authentication.
    """
    return api.SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, ())


_ALREADY_LOGGED_IN = "SaslAuthenticate request received after successful authentication"


@handles(ApiKey.SASL_AUTHENTICATE, (0, 2))
def sasl_authenticate(request: api.SaslAuthenticateRequest, ctx: Context) -> api.SaslAuthenticateResponse:  # noqa: ARG001
    """Refuse a message of a login on a listener without SASL, or after a login. Those of a login are answered
    by the listener's authentication.
    """
    return api.SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _ALREADY_LOGGED_IN, b"", 0)


_MECHANISM_NUMBERS = {name: number for number, name in enumerate(MECHANISMS, 1)}


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), (Operation.DESCRIBE, ResourceType.CLUSTER))
def describe_user_scram_credentials(
    request: api.DescribeUserScramCredentialsRequest, ctx: Context
) -> api.DescribeUserScramCredentialsResponse:
    """List the users with SCRAM credentials, and their iterations; no keys."""
    if why := ctx.denied(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return api.DescribeUserScramCredentialsResponse(error_code=ctx.refused(why), error_message=str(why))
    kept = ctx.services.credentials.all()
    named = [each.name for each in request.users or ()] or sorted(kept)
    times = Counter(named)
    results = []
    for user in dict.fromkeys(named):
        code, text, infos = ErrorCode.NONE, None, []
        if times[user] > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        elif user not in kept:
            code = ErrorCode.RESOURCE_NOT_FOUND
            text = f"Attempt to describe a user credential that does not exist: {user}"
        else:
            infos = sorted((_MECHANISM_NUMBERS[name], each.iterations) for name, each in kept[user].items())
        results.append(
            api.DescribeUserScramCredentialsResult(
                user, code, text, tuple(api.CredentialInfo(*info) for info in infos)
            )
        )
    return api.DescribeUserScramCredentialsResponse(results=tuple(results))


_MECHANISM_NAMES = {number: name for name, number in _MECHANISM_NUMBERS.items()}
_MAX_ITERATIONS = 16_384
_MAX_SALT_BYTES = 1024


class _RefusedChange(KafkaError):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@handles(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), (Operation.ALTER, ResourceType.CLUSTER), takes_long=always
)
def alter_user_scram_credentials(
    request: api.AlterUserScramCredentialsRequest, ctx: Context
) -> api.AlterUserScramCredentialsResponse:
    """Set and remove SCRAM credentials, durably before the response is sent."""
    wanted: list[api.ScramCredentialDeletion | api.ScramCredentialUpsertion]
    wanted = [*request.deletions, *request.upsertions]
    users = dict.fromkeys(each.name for each in wanted)
    times = Counter((each.name, each.mechanism) for each in wanted)
    refused: dict[str, KafkaError] = {}
    changes: list[CredentialChange] = []
    if refusal := ctx.denied(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        refused, wanted = dict.fromkeys(users, refusal), []
    for each in wanted:
        try:
            if times[each.name, each.mechanism] > 1:
                raise _RefusedChange(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            changes.append(_scram_change(each, ctx))
        except KafkaError as e:
            refused.setdefault(each.name, e)
    changes = [change for change in changes if change.user not in refused]
    if changes:
        try:
            ctx.services.credentials.change(changes)
        except KafkaError as e:
            refused |= {change.user: e for change in changes}
    return api.AlterUserScramCredentialsResponse(
        results=tuple(_altered(user, refused.get(user), ctx) for user in users)
    )


def _scram_change(
    wanted: api.ScramCredentialDeletion | api.ScramCredentialUpsertion, ctx: Context
) -> CredentialChange:
    user, mechanism = wanted.name, _MECHANISM_NAMES.get(wanted.mechanism)
    if not user:
        raise _RefusedChange(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is None:
        raise _RefusedChange(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(wanted, api.ScramCredentialDeletion):
        if mechanism not in ctx.services.credentials.all().get(user, {}):
            raise _RefusedChange(
                ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
            )
        return CredentialChange(user, mechanism, None)
    if wanted.iterations < MIN_ITERATIONS:
        raise _RefusedChange(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > _MAX_ITERATIONS:
        raise _RefusedChange(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not wanted.salted_password or not 0 < len(wanted.salt) <= _MAX_SALT_BYTES:
        raise _RefusedChange(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"salt of 1 to {_MAX_SALT_BYTES} bytes and a salted password"
        )
    credential = ScramCredential.of_salted(
        mechanism, bytes(wanted.salted_password), bytes(wanted.salt), wanted.iterations
    )
    return CredentialChange(user, mechanism, credential)


def _altered(user: str, error: KafkaError | None, ctx: Context) -> api.AlterUserScramCredentialsResult:
    if error is None:
        return api.AlterUserScramCredentialsResult(user, ErrorCode.NONE, None)
    return api.AlterUserScramCredentialsResult(user, ctx.refused(error), str(error))
