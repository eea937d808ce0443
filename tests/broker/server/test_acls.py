"""ACLs at a served port: what is denied, what is left out, and what is kept."""

from __future__ import annotations

from pyspark_kafkalog.protocol.api.describe_acls import DescribeAclsRequest
from pyspark_kafkalog.security.acls import Operation, PatternType, Permission, ResourceType

ANONYMOUS = "User:ANONYMOUS"
EVERYTHING = DescribeAclsRequest(
    resource_type_filter=ResourceType.ANY,
    resource_name_filter=None,
    pattern_type_filter=PatternType.ANY,
    principal_filter=None,
    host_filter=None,
    operation=Operation.ANY,
    permission_type=Permission.ANY,
)
