"""The admin client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Final, Self, SupportsFloat, Unpack

from muster.client.admin import acls as acl_calls
from muster.client.admin import cluster as cluster_calls
from muster.client.admin import configs as config_calls
from muster.client.admin import groups as group_calls
from muster.client.admin import hanging as hanging_calls
from muster.client.admin import offsets as offset_calls
from muster.client.admin import quotas as quota_calls
from muster.client.admin import replicas as replica_calls
from muster.client.admin import reset as reset_calls
from muster.client.admin import topics as topic_calls
from muster.client.admin import transactions as transaction_calls
from muster.client.admin import users as user_calls
from muster.client.admin.acls import Acl, AclFilter
from muster.client.admin.answers import Outcomes
from muster.client.admin.cluster import ClusterDescription
from muster.client.admin.configs import Config, ConfigChange, ConfigResource
from muster.client.admin.groups import GroupDescription, GroupListing
from muster.client.admin.hanging import HangingTransaction, HeldBack
from muster.client.admin.offsets import READ_UNCOMMITTED, GroupOffsets
from muster.client.admin.quotas import QuotaEntity, Quotas
from muster.client.admin.replicas import ElectionType, LogDir, ProducerState, Reassignment
from muster.client.admin.reset import ResetOffset, Target
from muster.client.admin.topics import (
    BROKER_DEFAULT,
    CreatedTopic,
    NewPartitions,
    NewTopic,
    TopicDescription,
)
from muster.client.admin.transactions import FencedProducer, TransactionDescription, TransactionListing
from muster.client.admin.users import ITERATIONS_DEFAULT, MECHANISMS, Credentials
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.network.servers import DEFAULT_BOOTSTRAP, parse_servers
from muster.client.partitions import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from muster.client.security.settings import SecurityOptions, SecuritySettings
from muster.client.settings import check_known, check_text

_REQUEST_TIMEOUT_MS: Final = 30_000
_API_TIMEOUT_MS: Final = 60_000
"""Kafka's request.timeout.ms and default.api.timeout.ms."""


class Admin:
    """Manages any Kafka cluster: topics, configs, groups, offsets, transactions, users and the cluster
    itself.

        async with Admin("127.0.0.1:9092") as admin:
            await admin.create_topic("orders", num_partitions=3)
            await admin.reset_group_offsets("billing", Earliest(), topics=["orders"])

    Calls about several names return `Outcomes`: a result or a KafkaError by name; `raise_for_failures()`
    returns only the results. Calls about one name return its result, or raise KafkaError. ClientError is
    raised if no broker responds. `timeout` is in seconds (default: default_api_timeout_ms); a single request
    gets at most request_timeout_ms of it. Reads are retried until then after retriable failures. Changes are
    not sent twice unless that is harmless: a lost response raises a ClientError that says the change may have
    been applied.

    Connections are opened when needed. A closed Admin raises Closed.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        *,
        client_id: str = "muster",
        request_timeout_ms: int = _REQUEST_TIMEOUT_MS,
        default_api_timeout_ms: int = _API_TIMEOUT_MS,
        **security: Unpack[SecurityOptions],
    ) -> None:
        """Raises a ValueError or TypeError that names the argument and says what it takes."""
        addresses = parse_servers(bootstrap_servers)
        if not isinstance(client_id, str):
            raise TypeError(f"client_id={client_id!r}: it takes text")
        check_text("client_id", client_id)
        self._default_timeout_s = _seconds(default_api_timeout_ms, "default_api_timeout_ms", a_second=1000)
        _seconds(request_timeout_ms, "request_timeout_ms", a_second=1000)
        check_known("Admin", security, (each.name for each in fields(SecuritySettings) if each.init))
        self._cluster = Cluster(
            addresses,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            security=SecuritySettings(**security).security,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; calls in progress fail. Takes at most a second. Safe to call again."""
        await self._cluster.close()

    def _until(self, timeout: float | None) -> float:
        return deadline(self._default_timeout_s if timeout is None else _seconds(timeout, "timeout"))

    # --- topics ---------------------------------------------------------------------------------------------

    async def list_topics(
        self, *, include_internal: bool = False, timeout: float | None = None
    ) -> list[TopicDescription]:
        """All topics with their partitions, by name."""
        return await topic_calls.list_topics(
            self._cluster, self._until(timeout), include_internal=include_internal
        )

    async def describe_topics(
        self, names: Iterable[str], *, timeout: float | None = None
    ) -> Outcomes[str, TopicDescription]:
        """Describe topics. One that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
        return await topic_calls.describe_topics(self._cluster, _names(names, "names"), self._until(timeout))

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """Describe one topic."""
        return (await self.describe_topics([name], timeout=timeout)).raise_for_failures()[name]

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> Outcomes[str, CreatedTopic]:
        """Create topics, and wait until their partitions have leaders. `validate_only`: only check whether it
        would work."""
        return await topic_calls.create_topics(
            self._cluster, topics, self._until(timeout), validate_only=validate_only
        )

    async def create_topic(
        self,
        name: str,
        num_partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        *,
        replica_assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> CreatedTopic:
        """Create one topic; see NewTopic."""
        topic = NewTopic(
            name=name,
            num_partitions=num_partitions,
            replication_factor=replication_factor,
            replica_assignments=replica_assignments,
            configs=configs or {},
        )
        created = await self.create_topics([topic], validate_only=validate_only, timeout=timeout)
        return created.raise_for_failures()[name]

    async def delete_topics(
        self, names: Iterable[str], *, timeout: float | None = None
    ) -> Outcomes[str, None]:
        """Delete topics, with their records and the offsets committed for them."""
        return await topic_calls.delete_topics(self._cluster, _names(names, "names"), self._until(timeout))

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete one topic."""
        (await self.delete_topics([name], timeout=timeout)).raise_for_failures()

    async def create_partitions(
        self,
        counts: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Add partitions to topics, and wait until they have leaders. Each count is a topic's new total."""
        return await topic_calls.create_partitions(
            self._cluster, counts, self._until(timeout), validate_only=validate_only
        )

    # --- configs --------------------------------------------------------------------------------------------

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ConfigResource, dict[str, Config]]:
        """The configs of topics, brokers and groups, by name; `names` selects some, None means all."""
        return await config_calls.describe_configs(
            self._cluster,
            resources,
            self._until(timeout),
            names=None if names is None else _names(names, "names"),
            synonyms=synonyms,
            documentation=documentation,
        )

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigChange]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ConfigResource, None]:
        """Change configs: a string sets one, None resets it to the inherited value, Append and Subtract
        change a list. Others stay unchanged. Either all changes to a resource are made, or none."""
        return await config_calls.alter_configs(
            self._cluster, changes, self._until(timeout), validate_only=validate_only
        )

    # --- groups ---------------------------------------------------------------------------------------------

    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = (), timeout: float | None = None
    ) -> list[GroupListing]:
        """The groups of all brokers, by id; optionally only those in one of these states (Stable, Empty, ...)
        and of one of these types (classic, consumer, ...)."""
        return await group_calls.list_groups(
            self._cluster, self._until(timeout), states=_names(states, "states"), types=_names(types, "types")
        )

    async def describe_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> Outcomes[str, GroupDescription]:
        """Describe groups and their members. A group that does not exist gets GROUP_ID_NOT_FOUND."""
        return await group_calls.describe_groups(
            self._cluster, _names(group_ids, "group_ids"), self._until(timeout)
        )

    async def describe_group(self, group_id: str, *, timeout: float | None = None) -> GroupDescription:
        """Describe one group and its members."""
        return (await self.describe_groups([group_id], timeout=timeout)).raise_for_failures()[group_id]

    async def delete_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> Outcomes[str, None]:
        """Delete groups without members, and their offsets. A group with members gets NON_EMPTY_GROUP, which
        names its members."""
        return await group_calls.delete_groups(
            self._cluster, _names(group_ids, "group_ids"), self._until(timeout)
        )

    async def delete_group(self, group_id: str, *, timeout: float | None = None) -> None:
        """Delete one group."""
        (await self.delete_groups([group_id], timeout=timeout)).raise_for_failures()

    async def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Iterable[str] | None = None,
        instance_ids: Iterable[str] | None = None,
        reason: str = group_calls.REASON,
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Remove members of a classic group by member id or group instance id; without either, all of them.
        Members still running rejoin. The outcomes are keyed by the ids."""
        return await group_calls.remove_members(
            self._cluster,
            group_id,
            self._until(timeout),
            member_ids=None if member_ids is None else _names(member_ids, "member_ids"),
            instance_ids=None if instance_ids is None else _names(instance_ids, "instance_ids"),
            reason=reason,
        )

    # --- offsets of groups ----------------------------------------------------------------------------------

    async def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False, timeout: float | None = None
    ) -> GroupOffsets:
        """All committed offsets of a group, by partition; empty if the group does not exist.
        `require_stable`: wait for offsets of open transactions instead of ignoring them (KIP-447)."""
        found = await self.list_groups_offsets([group_id], require_stable=require_stable, timeout=timeout)
        return found.raise_for_failures()[group_id]

    async def list_groups_offsets(
        self, group_ids: Iterable[str], *, require_stable: bool = False, timeout: float | None = None
    ) -> Outcomes[str, GroupOffsets]:
        """All committed offsets of several groups; see `list_group_offsets`."""
        return await offset_calls.list_group_offsets(
            self._cluster,
            _names(group_ids, "group_ids"),
            self._until(timeout),
            require_stable=require_stable,
        )

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Commit offsets for a group without members, which is created if missing. If it has members, the
        outcomes are UNKNOWN_MEMBER_ID."""
        return await offset_calls.alter_group_offsets(self._cluster, group_id, offsets, self._until(timeout))

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Delete a group's committed offsets for partitions. Those of a topic that members subscribe to get
        GROUP_SUBSCRIBED_TO_TOPIC. Raises GROUP_ID_NOT_FOUND if the group does not exist."""
        return await offset_calls.delete_group_offsets(
            self._cluster, group_id, partitions, self._until(timeout)
        )

    async def reset_group_offsets(
        self,
        group_id: str,
        to: Target,
        *,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, ResetOffset]:
        """Reset a group without members to Earliest(), Latest(), Current(), Offset(n), Shift(n), At(datetime)
        or By(timedelta): in all partitions of these topics and in these partitions, or, without either,
        wherever it has committed offsets; or to PerPartition(offsets), which names them. Except for
        Current(), an offset outside the log becomes the nearest one in it. `dry_run`: only compute the new
        offsets.

        Raises KafkaError(NON_EMPTY_GROUP) if the group has members: stop them first. A missing group is
        created. A topic that does not exist appears in the outcomes as its partition -1.
        """
        return await reset_calls.reset_group_offsets(
            self._cluster,
            group_id,
            to,
            self._until(timeout),
            topics=None if topics is None else _names(topics, "topics"),
            partitions=partitions,
            dry_run=dry_run,
        )

    # --- logs -----------------------------------------------------------------------------------------------

    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int | datetime],
        *,
        isolation_level: int = READ_UNCOMMITTED,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition, the first record at or after a time (epoch ms, or a datetime with a time zone),
        or the offset of EARLIEST, LATEST or MAX_TIMESTAMP; None if there is no such record. EARLIEST and
        LATEST have the timestamp -1."""
        return await offset_calls.list_offsets(
            self._cluster, wanted, self._until(timeout), isolation_level=isolation_level
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, int]:
        """Delete the records before these offsets; HIGH_WATERMARK deletes all. The outcome is the first
        remaining offset."""
        return await offset_calls.delete_records(self._cluster, before, self._until(timeout))

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, list[ProducerState]]:
        """The producer ids that have written to each partition."""
        return await replica_calls.describe_producers(self._cluster, partitions, self._until(timeout))

    # --- transactions ---------------------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers, by id; optionally only those in one of these states (Ongoing,
        CompleteCommit, ...), with one of these producer ids, and whose whole id matches a regular expression.
        `longer_than_ms`: only those whose transaction has been open for longer, unless `states` says
        otherwise. `longer_than_ms` needs Kafka 3.8, `pattern` 4.1."""
        return await transaction_calls.list_transactions(
            self._cluster,
            self._until(timeout),
            states=_names(states, "states"),
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> Outcomes[str, TransactionDescription]:
        """Describe transactional ids. One that does not exist gets TRANSACTIONAL_ID_NOT_FOUND."""
        return await transaction_calls.describe_transactions(
            self._cluster, _names(transactional_ids, "transactional_ids"), self._until(timeout)
        )

    async def describe_transaction(
        self, transactional_id: str, *, timeout: float | None = None
    ) -> TransactionDescription:
        """Describe one transactional id."""
        described = await self.describe_transactions([transactional_id], timeout=timeout)
        return described.raise_for_failures()[transactional_id]

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> Outcomes[str, FencedProducer]:
        """Fence the producers of transactional ids: their transactions are aborted, and whatever they send
        from now on is refused. An id that does not exist is created."""
        return await transaction_calls.fence_producers(
            self._cluster, _names(transactional_ids, "transactional_ids"), self._until(timeout)
        )

    async def find_hanging_transactions(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        longer_than_ms: int | None = None,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, list[HangingTransaction]]:
        """The transactions in each partition (default: all) that no coordinator will end, and whose producer
        has written nothing for `longer_than_ms` (default: the brokers' transaction.max.timeout.ms plus five
        minutes). A transaction whose id you may not describe looks as if it were hanging."""
        return await hanging_calls.find_hanging_transactions(
            self._cluster, self._until(timeout), partitions=partitions, longer_than_ms=longer_than_ms
        )

    async def find_held_back_groups(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, HeldBack]:
        """The groups that open transactions in these partitions hold back if they read only committed
        records: those whose committed offset is not beyond the last stable offset."""
        return await hanging_calls.find_held_back_groups(self._cluster, partitions, self._until(timeout))

    async def abort_transaction(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Abort a hanging transaction on a partition, bypassing its coordinator. A transaction that the
        coordinator still knows would be aborted here and perhaps committed elsewhere: end it with
        `fence_producers`. Raises INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED if the partition
        knows newer epochs."""
        await transaction_calls.abort_transaction(
            self._cluster,
            partition,
            producer_id,
            producer_epoch,
            self._until(timeout),
            coordinator_epoch=coordinator_epoch,
        )

    # --- cluster --------------------------------------------------------------------------------------------

    async def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        """The cluster's id, controller and brokers."""
        return await cluster_calls.describe_cluster(self._cluster, self._until(timeout))

    async def describe_log_dirs(
        self, nodes: Iterable[int] | None = None, *, timeout: float | None = None
    ) -> Outcomes[int, list[LogDir]]:
        """The log directories of these brokers (default: all), by node id, with their replicas."""
        return await replica_calls.describe_log_dirs(self._cluster, self._until(timeout), nodes)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        election_type: ElectionType = ElectionType.PREFERRED,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Elect leaders for these partitions; None means all that need it. A partition that already has the
        right leader gets ELECTION_NOT_NEEDED."""
        return await replica_calls.elect_leaders(
            self._cluster, self._until(timeout), partitions, election_type=election_type
        )

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Assign partitions to brokers, by node id, the preferred leader first; None cancels a reassignment
        in progress."""
        return await replica_calls.alter_partition_reassignments(
            self._cluster,
            reassignments,
            self._until(timeout),
            allow_replication_factor_change=allow_replication_factor_change,
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments of these partitions (default: all) that are in progress. muster never has any."""
        return await replica_calls.list_partition_reassignments(
            self._cluster, self._until(timeout), partitions
        )

    # --- ACLs -----------------------------------------------------------------------------------------------

    async def describe_acls(self, by: AclFilter | None = None, *, timeout: float | None = None) -> list[Acl]:
        """The ACLs that a filter selects (default: all). Raises SECURITY_DISABLED if the cluster has no
        authorizer."""
        return await acl_calls.describe_acls(self._cluster, by or AclFilter(), self._until(timeout))

    async def create_acls(self, acls: Iterable[Acl], *, timeout: float | None = None) -> Outcomes[Acl, None]:
        """Create ACLs; existing ones stay unchanged."""
        return await acl_calls.create_acls(self._cluster, acls, self._until(timeout))

    async def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout: float | None = None
    ) -> Outcomes[AclFilter, list[Acl]]:
        """Delete the ACLs that each filter selects; its outcome is the list of deleted ACLs."""
        return await acl_calls.delete_acls(self._cluster, filters, self._until(timeout))

    # --- quotas ---------------------------------------------------------------------------------------------

    async def describe_client_quotas(
        self, entity: QuotaEntity | None = None, *, strict: bool = False, timeout: float | None = None
    ) -> dict[QuotaEntity, Quotas]:
        """The quotas of every entity that has the parts of this one (default: all) and, if `strict`, no
        others. `QuotaEntity(user=QuotaName.ANY)` matches every user."""
        return await quota_calls.describe_client_quotas(
            self._cluster, entity or QuotaEntity(), self._until(timeout), strict=strict
        )

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[QuotaEntity, None]:
        """Set the quotas of entities, by Kafka's names such as `producer_byte_rate`; None removes one."""
        return await quota_calls.alter_client_quotas(
            self._cluster, changes, self._until(timeout), validate_only=validate_only
        )

    # --- users ----------------------------------------------------------------------------------------------

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> Outcomes[str, Credentials]:
        """The SCRAM credentials of these users (default: all), by name: iterations by mechanism. A user
        without any gets RESOURCE_NOT_FOUND."""
        return await user_calls.describe_user_scram_credentials(
            self._cluster, None if users is None else _names(users, "users"), self._until(timeout)
        )

    async def upsert_user_scram_credentials(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = MECHANISMS,
        iterations: int = ITERATIONS_DEFAULT,
        timeout: float | None = None,
    ) -> None:
        """Set a user's password for SCRAM, and create the user if missing. The password is salted and hashed
        here, and never sent."""
        await user_calls.upsert_user_scram_credentials(
            self._cluster,
            user,
            password,
            self._until(timeout),
            mechanisms=_names(mechanisms, "mechanisms"),
            iterations=iterations,
        )

    async def delete_user_scram_credentials(
        self, user: str, *, mechanisms: Iterable[str] | None = None, timeout: float | None = None
    ) -> None:
        """Delete a user's SCRAM credentials, by default all. Connections that have logged in stay open."""
        await user_calls.delete_user_scram_credentials(
            self._cluster,
            user,
            self._until(timeout),
            mechanisms=None if mechanisms is None else _names(mechanisms, "mechanisms"),
        )


def _seconds(value: float, name: str, *, a_second: int = 1) -> float:
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"{name}={value!r}: it takes a time, a number")
    seconds = float(value) / a_second
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name}: it takes a time above 0, not {seconds:g} s")
    return seconds


def _names(given: Iterable[str], parameter: str) -> list[str]:
    """Raises TypeError for a str: it is an iterable of strs, but hardly ever meant as one."""
    if isinstance(given, str):
        raise TypeError(f"{parameter}: it takes several names, such as [{given!r}]")
    return list(given)
