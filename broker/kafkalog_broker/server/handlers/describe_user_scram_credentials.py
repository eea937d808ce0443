"""DescribeUserScramCredentials 0: the users with SCRAM credentials, and their iterations; no keys."""

from __future__ import annotations

from collections import Counter

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.alter_user_scram_credentials import NUMBERS
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.logins import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType


@handles(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    needs=((Operation.DESCRIBE, ResourceType.CLUSTER),),
)
def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, ctx: Context
) -> DescribeUserScramCredentialsResponse:
    """All users, or those that are named, each of which must be there, and in the request once."""
    try:
        ctx.demand(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as e:
        return DescribeUserScramCredentialsResponse(
            error_code=ctx.refused(e), error_message=str(e), results=()
        )
    kept = ctx.services.credentials.all()
    named = [each.name for each in request.users or ()] or sorted(kept)
    times = Counter(named)
    results = []
    for user in dict.fromkeys(named):
        if times[user] > 1:
            results.append(
                DescribeUserScramCredentialsResult(
                    user,
                    ErrorCode.DUPLICATE_RESOURCE,
                    f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
                )
            )
        elif user not in kept:
            results.append(
                DescribeUserScramCredentialsResult(
                    user,
                    ErrorCode.RESOURCE_NOT_FOUND,
                    f"Attempt to describe a user credential that does not exist: {user}",
                )
            )
        else:
            found = kept[user].items()
            infos = tuple(sorted((NUMBERS[name], credential.iterations) for name, credential in found))
            results.append(
                DescribeUserScramCredentialsResult(
                    user, ErrorCode.NONE, None, tuple(CredentialInfo(*info) for info in infos)
                )
            )
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE, error_message=None, results=tuple(results)
    )
