"""What AlterConfigs sets on single consumer groups (KIP-848), whether they exist or not: kept in the store
for all brokers, and passed on to their shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.group.config import GroupConfigs, GroupOverrides
from muster.coordinator.server.broker_config_specs import BROKER_SPECS, shown
from muster.coordinator.server.broker_configs import BrokerConfigs, Source, Synonym
from muster.coordinator.server.config_rows import ConfigRows, Rows
from muster.coordinator.server.kept_configs import HIDDEN
from muster.coordinator.topics.config import ConfigChange, changed, read, to_check
from muster.protocol.errors import ErrorCode, KafkaError
from muster.settings import Scope, Setting

_log: Final = Logger(part="configs")

_ROW: Final = "group:"
"""Prefix of the row names of groups; no broker's row has it, since its name is a number."""

GROUPS_MAX: Final = 10_000
"""Groups with configs of their own."""
NAME_BYTES_MAX: Final = 2_048
"""UTF-8 bytes of a group's name: PostgreSQL's index takes no more."""

_SESSION: Final = "consumer.session.timeout.ms"
_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
_ASSIGNMENT: Final = "consumer.assignment.interval.ms"


def _of_groups(name: str) -> Setting:
    """The group's config that overrides the broker's, which has the same name after the prefix `group.`."""
    of_brokers = BROKER_SPECS[f"group.{name}"]
    return of_brokers._replace(name=name, default_from=of_brokers.name, scope=Scope.CLUSTER_WIDE)


GROUP_SPECS: Final[Mapping[str, Setting]] = {
    name: _of_groups(name) for name in (_ASSIGNMENT, "consumer.assignor.offload.enable", _HEARTBEAT, _SESSION)
}
"""Every group config, by Kafka's name."""

_BOUNDED: Final[Mapping[str, tuple[str, str]]] = {
    name: (f"group.consumer.min.{rest}", f"group.consumer.max.{rest}")
    for name in (_SESSION, _HEARTBEAT, _ASSIGNMENT)
    for rest in (name.removeprefix("consumer."),)
}
"""The broker's settings that bound a group's."""
_OF_OTHER_KINDS: Final = ("share.", "streams.", "errors.deadletterqueue.")


class KeptGroupConfigs:
    """Configs of groups, within the bounds that the broker's `configs` set; passed on to `in_force`.

    Refusals are KafkaErrors.
    """

    def __init__(self, rows: ConfigRows, configs: BrokerConfigs, in_force: GroupConfigs) -> None:
        """To be created after `configs`, whose values it reads when it is notified of the rows."""
        self._rows = rows
        self._configs = configs
        self.in_force = in_force
        self._of: Mapping[str, Mapping[str, str]] = {}
        self._told: object = None
        rows.listeners.append(self._read)

    def __repr__(self) -> str:
        return f"<KeptGroupConfigs of {len(self._of)} groups>"

    def names(self) -> list[str]:
        """The groups that have configs."""
        return sorted(self._of)

    def altered(self, group_id: str) -> Mapping[str, str]:
        """What is set on the group."""
        return self._of.get(group_id, {})

    def described(self, group_id: str) -> Iterator[tuple[str, Setting, list[Synonym]]]:
        """The configs shown to clients, by name, with the sources of their values. INVALID_REQUEST without
        a group name."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        own = self.altered(group_id)
        for name, spec in GROUP_SPECS.items():
            assert spec.default_from is not None
            if name in own:
                first = [Synonym(name, shown(spec, own[name]), Source.GROUP)]
            elif spec.default_from in HIDDEN:
                continue
            else:
                first = []
            yield name, spec, first + self._configs.synonyms(spec.default_from)

    async def alter(
        self, group_id: str, changes: Sequence[ConfigChange], *, replace: bool, validate_only: bool
    ) -> None:
        """Change what is set on a group; `replace` first drops what is set. What only a newer muster can read
        stays, unless it is among the changed configs.

        Codes: 40 for an unknown config, APPEND to one that is not a list, and an invalid value; 42 for a name
        that no group with configs can have, and when `GROUPS_MAX` is reached. Raises StoreError.
        """
        _check_name(group_id)

        def after(before: Mapping[str, str]) -> Mapping[str, str]:
            configs = changed({} if replace else before, changes, GROUP_SPECS)
            self._check(to_check(configs, changes, GROUP_SPECS.get))
            if configs and group_id not in self._of and len(self._of) >= GROUPS_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{GROUPS_MAX} groups have configs of their own, and no more can: delete those of "
                    "another, or set the broker's for all",
                )
            return configs

        await self._rows.change(_ROW + group_id, after, validate_only=validate_only)

    def _check(self, configs: Mapping[str, str]) -> None:
        for name in configs:
            if name not in GROUP_SPECS:
                why = f"Unknown group config name: {name}"
                if name.startswith(_OF_OTHER_KINDS):
                    why += " (muster has no share groups and no streams groups)"
                raise KafkaError(ErrorCode.INVALID_CONFIG, why)
        for name, text in configs.items():
            value = read(GROUP_SPECS[name], name, text)
            if name in _BOUNDED:
                low, high = self._bounds(name)
                if not low <= value <= high:
                    raise KafkaError(
                        ErrorCode.INVALID_CONFIG, f"{name} must be in the range {low} to {high} inclusive."
                    )
        overrides = self._overrides(configs)
        if overrides.consumer_session_timeout_ms <= overrides.consumer_heartbeat_interval_ms:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{_SESSION} ({overrides.consumer_session_timeout_ms}) must be greater than {_HEARTBEAT} "
                f"({overrides.consumer_heartbeat_interval_ms})",
            )

    # --- what is in force -----------------------------------------------------------------------------------

    def _read(self, rows: Rows) -> None:
        self._of = {
            name.removeprefix(_ROW): configs for name, configs in rows.items() if name.startswith(_ROW)
        }
        default = self._overrides({})
        found = self._of, default
        if found == self._told:
            return
        self._told = found
        for group_id, configs in self._of.items():
            self._warn(group_id, configs)
        of_groups = {group_id: self._overrides(configs) for group_id, configs in self._of.items()}
        self.in_force.become(default, of_groups)

    def _overrides(self, configs: Mapping[str, str]) -> GroupOverrides:
        """What is in force with `configs` set. A value beyond the broker's bounds, which may have changed
        since it was set, counts as the bound."""
        return GroupOverrides(
            *(self._effective(name, configs) for name in (_SESSION, _HEARTBEAT, _ASSIGNMENT))
        )

    def _effective(self, name: str, configs: Mapping[str, str]) -> int:
        value = GROUP_SPECS[name].read(configs[name]) if name in configs else None
        if value is None:
            return self._configs.number(f"group.{name}")
        low, high = self._bounds(name)
        return max(low, min(int(value), high))

    def _bounds(self, name: str) -> tuple[int, int]:
        low, high = _BOUNDED[name]
        return self._configs.number(low), self._configs.number(high)

    def _warn(self, group_id: str, configs: Mapping[str, str]) -> None:
        for name in configs.keys() & _BOUNDED.keys():
            effective = self._effective(name, configs)
            if configs[name].strip() != str(effective):
                _log.warning(
                    "a group's config is beyond this broker's bounds",
                    group=group_id,
                    config=name,
                    value=configs[name],
                    effective=effective,
                )


def _check_name(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    if len(group_id.encode()) > NAME_BYTES_MAX or "\0" in group_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a group with configs has a name of at most {NAME_BYTES_MAX} bytes without NUL",
        )
