"""Translates a consumer's settings for its parts."""

from __future__ import annotations

from muster.client.consume.settings import ConsumerSettings
from muster.client.fetch.fetcher import FetchSettings
from muster.client.group.group import GroupSettings
from muster.client.network.cluster import Cluster


def cluster_of(given: ConsumerSettings) -> Cluster:
    return Cluster(
        given.bootstrap_servers,
        client_id=given.client_id,
        metadata_max_age_ms=given.metadata_max_age_ms,
        retry_backoff_ms=given.retry_backoff_ms,
        retry_backoff_max_ms=given.retry_backoff_max_ms,
        auto_create_topics=given.allow_auto_create_topics,
        request_timeout_ms=given.request_timeout_ms,
        security=given.security,
        patient=True,
    )


def fetch_settings(given: ConsumerSettings) -> FetchSettings:
    return FetchSettings(
        min_bytes=given.fetch_min_bytes,
        max_wait_ms=given.fetch_max_wait_ms,
        max_bytes=given.fetch_max_bytes,
        partition_max_bytes=given.max_partition_fetch_bytes,
        isolation_level=given.isolation_level,
        check_crcs=given.check_crcs,
        client_rack=given.client_rack,
        reset=given.auto_offset_reset,
        request_timeout_ms=given.request_timeout_ms,
        metadata_max_age_ms=given.metadata_max_age_ms,
    )


def group_settings(given: ConsumerSettings, group_id: str) -> GroupSettings:
    return GroupSettings(
        group_id=group_id,
        assignors=given.assignors,
        group_instance_id=given.group_instance_id,
        group_protocol=given.group_protocol,
        group_remote_assignor=given.group_remote_assignor,
        session_timeout_ms=given.session_timeout_ms,
        heartbeat_interval_ms=given.heartbeat_interval_ms,
        max_poll_interval_ms=given.max_poll_interval_ms,
        request_timeout_ms=given.request_timeout_ms,
        retry_backoff_ms=given.retry_backoff_ms,
        retry_backoff_max_ms=given.retry_backoff_max_ms,
        metadata_max_age_ms=given.metadata_max_age_ms,
        rack=given.client_rack,
        client_id=given.client_id,
        allow_auto_create_topics=given.allow_auto_create_topics,
    )
