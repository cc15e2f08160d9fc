"""Random sequences against groups of both kinds, compared with Apache Kafka: always the same ones.

`make differential` plays fresh ones, including those in which timeouts expire.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.differential.campaign import Campaign, Kind
from tests.kafka.differential.servers import kafka_configs, servers

pytestmark = pytest.mark.kafka

_SEED = 5_100
_SEQUENCES = {Kind.CLASSIC: 150, Kind.CONSUMER: 150}
_GIVEN_UP_MAX = 7
"""Sequences that may be given up, or compared only in part: on a busy machine a few, never most of them."""


@pytest.mark.parametrize("kind", Kind)
def test_apache_kafka_answers_sequences_as_muster_does(kind: Kind, kafka_of_configs: KafkaOfConfigs) -> None:
    kafka = kafka_of_configs(kafka_configs())
    campaign = Campaign(kind, _SEED, _SEQUENCES[kind], timed=0, at_once=8)
    with servers(kafka.port) as (theirs, ours):
        asyncio.run(campaign.run(theirs, ours))
    print(campaign.summary())
    assert campaign.compared + campaign.too_slow == _SEQUENCES[kind]
    assert campaign.too_slow <= _GIVEN_UP_MAX
    assert campaign.cut <= _GIVEN_UP_MAX
    assert not campaign.findings, "\n".join(map(str, campaign.findings.values()))
    assert campaign.deliberate, "nothing of what differs on purpose was met: the sequences say too little"
