"""Checks the cluster before Spark starts: that takes milliseconds, starting Spark takes seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, TypeAlias

from muster.client.admin.client import Admin
from muster.client.errors import ClientError, Unreachable
from muster.pipeline.access import Access
from muster.pipeline.errors import OptionError, PipelineError
from muster.protocol.errors import ErrorCode, KafkaError

Address: TypeAlias = tuple[str, int]
"""Host and port."""

_ANSWER_S: Final = 10.0


def check_topics(bootstrap_servers: str, topics: Iterable[str], access: Access) -> list[Address]:
    """The advertised addresses of the brokers. Raises PipelineError if none answers within ten seconds, or a
    topic does not exist."""
    return asyncio.run(_check_topics(bootstrap_servers, list(topics), access))


async def _check_topics(bootstrap_servers: str, topics: list[str], access: Access) -> list[Address]:
    options = access.client_options
    try:
        async with Admin(bootstrap_servers, **options) as admin:
            cluster = await admin.describe_cluster(timeout=_ANSWER_S)
            if topics:
                found = await admin.describe_topics(topics, timeout=_ANSWER_S)
                found.raise_for_failures()
            return [(each.host, each.port) for each in cluster.brokers]
    except ValueError as error:
        raise OptionError(f"--bootstrap-server: {error}") from None
    except Unreachable as error:
        hint = "is a broker running there? use --bootstrap-server for another"
        raise PipelineError(f"{error} ({hint})") from None
    except KafkaError as error:
        missing = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        hint = "; muster topics list shows the topics" if missing else ""
        raise PipelineError(f"{error.why} ({error.code.name}{hint})") from None
    except ClientError as error:
        raise PipelineError(str(error)) from None
