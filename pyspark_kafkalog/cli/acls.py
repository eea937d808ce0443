"""``kafkalog acls``: list, add and remove ACLs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    AsJson,
    ClusterCommands,
    Servers,
    connected,
    examples,
    group_names,
    topic_names,
)
from pyspark_kafkalog.cli.terminal_output import counted, show
from pyspark_kafkalog.client.admin import add_acls, list_acls, remove_acls
from pyspark_kafkalog.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_word,
)

acls = ClusterCommands(
    name="acls",
    no_args_is_help=True,
    help="List, add and remove ACLs: who may do what.",
    epilog=examples(
        "acls add User:alice --producer --topic orders",
        "acls add User:bob --consumer --topic orders- --prefixed --group bob-",
        "acls list --topic orders-eu",
        "acls remove User:bob",
    ),
)

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Topic; may be repeated.", autocompletion=topic_names),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", help="Group; may be repeated.", autocompletion=group_names),
]
Ids = Annotated[list[str] | None, typer.Option(help="Transactional id; may be repeated.")]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Treat these names as prefixes.")]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        help="Read, Write, Create, Delete, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, "
        "IdempotentWrite or All; may be repeated."
    ),
]
Host = Annotated[str | None, typer.Option(help="Client address; default: any.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow; denials take precedence.")]


@acls.command("list", epilog=examples("acls list --topic orders-eu --principal User:bob"))
def list_(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    cluster: OfCluster = False,
    principal: Annotated[str | None, typer.Option("--principal", help="Only ACLs of User:NAME.")] = None,
    as_json: AsJson = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """List the ACLs; for named resources, all that apply to them, including wildcards and prefixes."""
    resources = _resources(topic, group, transactional_id, cluster)
    filters = [AclFilter(kind, name, PatternType.MATCH, principal) for kind, name in resources] or [
        AclFilter(principal=principal)
    ]
    with connected(server) as found_cluster:
        found = {acl for each in filters for acl in list_acls(found_cluster, each)}
    _show(sorted(found), as_json=as_json)


@acls.command("add", epilog=examples("acls add User:alice --operation Read --topic orders"))
def add(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:NAME; User:* is everybody.")],
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    operation: Operations = None,
    producer: Annotated[
        bool,
        typer.Option(
            "--producer", help="Allow Write, Describe and Create on topics, Write and Describe on ids."
        ),
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="Allow Read and Describe on topics, Read on groups.")
    ] = False,
    host: Host = None,
    deny: Deny = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Allow or deny operations on topics, groups, transactional ids or the cluster."""
    if ":" not in principal:
        raise typer.BadParameter(f"{principal!r} has no type; write User:{principal}", param_hint="PRINCIPAL")
    resources = _resources(topic, group, transactional_id, cluster)
    if not resources:
        raise typer.BadParameter("give --topic, --group, --transactional-id or --cluster")
    operations = _operations(operation)
    if not operations and not producer and not consumer:
        raise typer.BadParameter("give --operation, --producer or --consumer")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    wanted = [
        Acl(
            kind,
            name,
            PatternType.LITERAL if kind is ResourceType.CLUSTER or name == WILDCARD else pattern,
            principal,
            host or WILDCARD,
            each,
            Permission.DENY if deny else Permission.ALLOW,
        )
        for kind, name in resources
        for each in dict.fromkeys((*operations, *_role(kind, producer=producer, consumer=consumer)))
    ]
    if not wanted:
        raise typer.BadParameter("--producer and --consumer need a --topic, or a --group")
    with connected(server) as found_cluster:
        add_acls(found_cluster, wanted)
    _show(wanted, as_json=False)


@acls.command("remove", epilog=examples("acls remove User:alice --topic orders"))
def remove(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:NAME.")],
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Ids = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    operation: Operations = None,
    host: Host = None,
    deny: Annotated[bool, typer.Option("--deny", help="Only ACLs that deny.")] = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Remove a principal's ACLs, all or those for the given resources and operations."""
    permission = Permission.DENY if deny else Permission.ANY
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    whole = AclFilter(principal=principal, host=host, permission=permission)
    filters = [
        whole._replace(resource_type=kind, name=name)
        if kind is ResourceType.CLUSTER or name == WILDCARD
        else whole._replace(resource_type=kind, name=name, pattern_type=pattern)
        for kind, name in _resources(topic, group, transactional_id, cluster)
    ] or [whole]
    operations = _operations(operation) or [Operation.ANY]
    filters = [each._replace(operation=one) for each in filters for one in operations]
    with connected(server) as found_cluster:
        removed = remove_acls(found_cluster, filters)
    _show(removed, as_json=False)
    typer.echo(f"removed {counted(len(removed), 'ACL')}", err=True)


def _resources(
    topics: Sequence[str] | None, groups: Sequence[str] | None, ids: Sequence[str] | None, cluster: bool
) -> list[tuple[ResourceType, str]]:
    found = [(ResourceType.TOPIC, name) for name in topics or ()]
    found += [(ResourceType.GROUP, name) for name in groups or ()]
    found += [(ResourceType.TRANSACTIONAL_ID, name) for name in ids or ()]
    return [*found, (ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else found


def _operations(words: Sequence[str] | None) -> list[Operation]:
    try:
        return [parse_word(Operation, word) for word in words or ()]
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--operation") from None


def _role(kind: ResourceType, *, producer: bool, consumer: bool) -> Iterator[Operation]:
    if producer and kind is ResourceType.TOPIC:
        yield from (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
    if producer and kind is ResourceType.TRANSACTIONAL_ID:
        yield from (Operation.WRITE, Operation.DESCRIBE)
    if consumer and kind is ResourceType.TOPIC:
        yield from (Operation.READ, Operation.DESCRIBE)
    if consumer and kind is ResourceType.GROUP:
        yield Operation.READ


def _show(acls: Sequence[Acl], *, as_json: bool) -> None:
    columns = ["resource", "name", "pattern", "principal", "host", "operation", "permission"]
    rows = []
    for acl in acls:
        resource = acl.resource_type.word, acl.name, acl.pattern_type.word
        who = acl.principal, acl.host, acl.operation.word, acl.permission.word
        rows.append(dict(zip(columns, (*resource, *who), strict=True)))
    if rows:
        show(rows, columns, as_json=as_json)
