"""Error messages for refusals in the consumer protocol (KIP-848). Pure."""

from __future__ import annotations

from typing import Final

from muster.client.errors import refusal
from muster.client.group.membership_types import GroupSettings
from muster.protocol.errors import ErrorCode, KafkaError


def not_offered(broker: str, why: str | None = None) -> KafkaError:
    """The coordinator does not speak the consumer protocol."""
    return refusal(
        ErrorCode.UNSUPPORTED_VERSION,
        f"{broker} does not offer the consumer protocol (KIP-848){f': {why}' if why else ''}; "
        "Apache Kafka offers it from 4.0 on",
    )


def turned_away(regex: str | None, error: KafkaError) -> KafkaError:
    """The coordinator does not accept members of the consumer protocol; with the options that help."""
    if regex is not None:
        instead = (
            f"topics=SubscriptionPattern({regex!r}) requires the consumer protocol: give re.compile(...), "
            "and group_protocol='classic' or group_protocol='auto'"
        )
    else:
        instead = (
            "set group_protocol='classic', or group_protocol='auto' to use the consumer protocol where "
            "it is offered"
        )
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        instead = (
            "there is a group of another kind by this id, which the broker does not convert "
            f"(group.consumer.migration.policy): {instead}; or use another group id"
        )
    return refusal(error.code, f"{error.why}; {instead}")


def refused(settings: GroupSettings, regex: str | None, error: KafkaError) -> KafkaError:
    """A permanent error, with the option that may help."""
    hint = _HINTS.get(error.code)
    if hint is None:
        return error
    option = hint.format(
        regex=regex, instance=settings.group_instance_id, assignor=settings.group_remote_assignor
    )
    return refusal(error.code, f"{error.why}; {option}")


_HINTS: Final = {
    ErrorCode.INVALID_REGULAR_EXPRESSION: "topics=SubscriptionPattern({regex!r}): it takes RE2 syntax",
    ErrorCode.UNSUPPORTED_ASSIGNOR: (
        "group_remote_assignor={assignor!r}: it takes one of the broker's group.consumer.assignors; "
        "without it, the broker chooses"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "the broker's group.consumer.max.size says how many members a group may have"
    ),
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "group_instance_id={instance!r}: another member has it, until that one leaves or its session ends; "
        "each consumer needs its own"
    ),
}
