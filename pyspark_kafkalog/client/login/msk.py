"""AWS_MSK_IAM: tokens of Amazon's signer (extra ``msk``), used in an OAUTHBEARER login.

Source: aws-msk-iam-sasl-signer-python; the JAAS options of aws-msk-iam-auth's IAMLoginModule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafkalog.client.login.tokens import Token
from pyspark_kafkalog.errors import AuthenticationFailed, InvalidConfig

CLIENT_HANDLER, LOGIN_HANDLER = "IAMClientCallbackHandler", "IAMOAuthBearerLoginCallbackHandler"
_REGION = re.compile(r"\.([a-z0-9-]+)\.(?:api\.)?amazonaws\.com(?:\.cn)?\.?$")
_DEFAULT_SESSION = "pyspark-kafkalog"


@dataclass(frozen=True)
class IamSource:
    """*Thread-safe: immutable.* The AWS identity of a client in one region."""

    region: str
    profile: str | None
    role: str | None
    session: str | None
    option: str

    @classmethod
    def of(cls, host: str, options: Mapping[str, str], option: str) -> IamSource:
        """Identity for a broker's host name and the JAAS options. Raises `InvalidConfig` without a region."""
        if options.get("awsRoleExternalId"):
            raise InvalidConfig(
                f"{option}: awsRoleExternalId is not supported: Amazon's Python signer has none"
            )
        found = _REGION.search(host.lower())
        region = found[1] if found else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region:
            raise InvalidConfig(
                f"AWS_MSK_IAM: the host name {host} holds no AWS region; set AWS_REGION in the environment"
            )
        return cls(
            region,
            options.get("awsProfileName"),
            options.get("awsRoleArn"),
            options.get("awsRoleSessionName"),
            option,
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        return ()

    def fetch(self, seconds: float) -> Token:
        """Sign a token locally; for a role, ask AWS within boto3's time limits."""
        del seconds
        provider = _provider()
        try:
            if self.role:
                session = self.session or _DEFAULT_SESSION
                text, expires_ms = provider.generate_auth_token_from_role_arn(self.region, self.role, session)
            elif self.profile:
                text, expires_ms = provider.generate_auth_token_from_profile(self.region, self.profile)
            else:
                text, expires_ms = provider.generate_auth_token(self.region)
        except Exception as e:
            raise AuthenticationFailed(
                f"AWS_MSK_IAM: no token for region {self.region}: {type(e).__name__}: {e}; check "
                f"{self.option} and the AWS credentials of this machine"
            ) from None
        return Token(text, expires_ms / 1000)


def _provider() -> Any:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        raise InvalidConfig(
            "sasl.mechanism=AWS_MSK_IAM needs the package aws-msk-iam-sasl-signer-python: "
            "pip install 'pyspark-kafkalog[msk]'"
        ) from None
    return MSKAuthTokenProvider
