"""The rules beside a judge that knows no index: Kafka's documented decision, ACL by ACL."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.security.authentication import Principal
from kafkalog_broker.security.authorizer import AclRules
from pyspark_kafkalog.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

NAMES = st.text("ab*", max_size=3)
OPERATIONS = [each for each in Operation if each is not Operation.ANY]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP]
ACLS = st.builds(
    Acl,
    st.sampled_from(TYPES),
    st.one_of(st.just("*"), st.text("ab*", min_size=1, max_size=3)),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:a", "User:b", "User:*"]),
    st.sampled_from(["1.1.1.1", "*"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def touches(acl: Acl, kind: ResourceType, name: str) -> bool:
    if acl.resource_type is not kind:
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def judge(
    acls: list[Acl], user: str, host: str, operation: Operation, kind: ResourceType, name: str, default: bool
) -> bool:
    touching = [acl for acl in acls if touches(acl, kind, name)]
    if not touching:
        return default
    mine = [acl for acl in touching if acl.principal in (user, "User:*") and acl.host in (host, "*")]
    if any(a.permission is Permission.DENY and a.operation in (operation, Operation.ALL) for a in mine):
        return False
    enough = {operation, Operation.ALL} | IMPLIED.get(operation, set())
    return any(a.permission is Permission.ALLOW and a.operation in enough for a in mine)


@given(
    st.lists(ACLS, max_size=6),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["1.1.1.1", "2.2.2.2"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from(TYPES),
    NAMES,
    st.booleans(),
)
def test_the_index_decides_as_a_walk_over_all_acls(
    acls: list[Acl], user: str, host: str, operation: Operation, kind: ResourceType, name: str, default: bool
) -> None:
    rules = AclRules(acls, allow_without_acl=default)
    wanted = judge(acls, f"User:{user}", host, operation, kind, name, default)
    for _ in range(2):  # the second time it is one that was kept
        assert rules.allow(Principal("User", user), host, operation, kind, name) is wanted


@given(st.lists(ACLS, max_size=5), st.sampled_from(["a", "c"]), st.sampled_from(["1.1.1.1", "2.2.2.2"]))
def test_any_resource_is_one_with_a_name_that_is_allowed(acls: list[Acl], user: str, host: str) -> None:
    """The names that ACLs can tell apart: theirs, and theirs with something after it."""
    rules, who = AclRules(acls), Principal("User", user)
    names = {acl.name + rest for acl in acls for rest in ("", "z", "zz")} - {"*"} | {"z"}
    kind, write = ResourceType.TOPIC, Operation.WRITE
    found = any(rules.allow(who, host, write, kind, name) for name in names)
    assert rules.allow_any(who, host, write, kind) is found


@given(st.lists(ACLS, max_size=6), NAMES)
def test_a_match_finds_all_acls_that_touch_a_name_and_no_others(acls: list[Acl], name: str) -> None:
    wanted = AclFilter(ResourceType.TOPIC, name, PatternType.MATCH)
    assert [a for a in acls if wanted.matches(a)] == [a for a in acls if touches(a, ResourceType.TOPIC, name)]
