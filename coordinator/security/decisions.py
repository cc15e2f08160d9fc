"""Decides what clients may do, by the ACLs in force (Kafka's StandardAuthorizer).

Among the ACLs that cover a resource (by its own name, a prefix of it, or `*`) and a client, one that denies
the operation takes precedence over one that allows it. If no ACL covers the resource at all, for any client,
the default decides (`allow.everyone.if.no.acl.found`); otherwise the operation is denied.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from muster.coordinator.security.acls import EVERYONE, OPERATIONS, Access, Acl, Filter, Pattern
from muster.protocol.messages.acls import WILDCARD, Operation, PatternType, Permission, ResourceType

_IMPLYING: Final[Mapping[Operation, frozenset[Operation]]] = {
    **{each: frozenset({each, Operation.ALL}) for each in Operation},
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.ALL,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
    ),
}
"""Allowing any of these also allows the operation. Denying one implies nothing."""
_KINDS: Final = (PatternType.LITERAL, PatternType.PREFIXED)
"""Of patterns; a filter may have others."""
_SOME_NAME: Final = "hardcode"
"""When Kafka asks about any resource, it asks about this name first, for clients that may do everything."""

_ByPrincipal = Mapping[str, Sequence[Access]]
"""The accesses of a pattern, by principal."""


class Acls:
    """The ACLs in force; immutable."""

    def __init__(self, patterns: Mapping[Pattern, frozenset[Access]], default: bool = False) -> None:
        """`default`: the decision for resources that no ACL covers."""
        self._of = patterns
        self._default = default
        self._count = sum(map(len, patterns.values()))
        self._literals: dict[tuple[ResourceType, str], _ByPrincipal] = {}
        self._prefixes: dict[tuple[ResourceType, str], _ByPrincipal] = {}
        self._lengths: dict[ResourceType, list[int]] = {}
        """The lengths of prefixes, by resource type: a name is looked up once for each."""
        for pattern, accesses in patterns.items():
            if not accesses:
                continue
            by_principal: dict[str, list[Access]] = {}
            for each in accesses:
                by_principal.setdefault(each.principal, []).append(each)
            if pattern.pattern is PatternType.LITERAL:
                self._literals[pattern.type, pattern.name] = by_principal
                continue
            self._prefixes[pattern.type, pattern.name] = by_principal
            lengths = self._lengths.setdefault(pattern.type, [])
            if len(pattern.name) not in lengths:
                insort(lengths, len(pattern.name))

    def __repr__(self) -> str:
        return f"<Acls {len(self)}>"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Acl]:
        return (Acl(pattern, access) for pattern, accesses in self._of.items() for access in accesses)

    def selected(self, by: Filter) -> dict[Pattern, list[Access]]:
        """The ACLs that a filter selects, by pattern."""
        found: dict[Pattern, list[Access]] = {}
        for pattern in self._candidates(by):
            if by.selects_pattern(pattern):
                of_pattern = sorted(each for each in self._of[pattern] if by.selects_access(each))
                if of_pattern:
                    found[pattern] = of_pattern
        return found

    def looked_at(self, by: Filter) -> int:
        """How many ACLs `selected` looks at for a filter, 1 at least."""
        candidates = self._candidates(by)
        if candidates is self._of:
            return max(self._count, 1)
        return sum(len(self._of[each]) for each in candidates) or 1

    def _candidates(self, by: Filter) -> Collection[Pattern]:
        """Patterns, among them all that a filter selects: the one that it names, or every one."""
        if by.name is None or by.type is ResourceType.ANY or by.pattern not in _KINDS:
            return self._of
        named = Pattern(by.type, by.pattern, by.name)
        return (named,) if named in self._of else ()

    def allow(self, principal: str, host: str, operation: Operation, type: ResourceType, name: str) -> bool:
        """Whether a client may do this with a resource."""
        implying = _IMPLYING[operation]
        allowed = about = False
        for by_principal in self._about(type, name):
            about = True
            for whom in (principal, EVERYONE):
                for each in by_principal.get(whom, ()):
                    if each.permission is Permission.ALLOW:
                        if not allowed and each.operation in implying and each.concerns(principal, host):
                            allowed = True
                    elif each.operation in (operation, Operation.ALL) and each.concerns(principal, host):
                        return False
        return allowed or (not about and self._default)

    def allow_with_any(self, principal: str, host: str, operation: Operation, type: ResourceType) -> bool:
        """Whether a client may do this with some resource of the type, whether it exists or not."""
        if self.allow(principal, host, operation, type, _SOME_NAME):
            return True
        literals: dict[Permission, set[str]] = {Permission.ALLOW: set(), Permission.DENY: set()}
        prefixes: dict[Permission, set[str]] = {Permission.ALLOW: set(), Permission.DENY: set()}
        for pattern, accesses in self._of.items():
            if pattern.type is not type:
                continue
            names = literals if pattern.pattern is PatternType.LITERAL else prefixes
            for each in accesses:
                if each.operation in (operation, Operation.ALL) and each.concerns(principal, host):
                    names[each.permission].add(pattern.name)
        denied = tuple(prefixes[Permission.DENY])
        if WILDCARD in literals[Permission.DENY]:
            return False
        if WILDCARD in literals[Permission.ALLOW]:
            return True
        allowed = (literals[Permission.ALLOW] - literals[Permission.DENY]) | prefixes[Permission.ALLOW]
        return any(not name.startswith(denied) for name in allowed)

    def bits(self, principal: str, host: str, type: ResourceType, name: str) -> int:
        """What a client may do with a resource, as bits (KIP-430)."""
        return operation_bits(
            each for each in OPERATIONS[type] if self.allow(principal, host, each, type, name)
        )

    def _about(self, type: ResourceType, name: str) -> Iterator[_ByPrincipal]:
        literal = self._literals.get((type, name))
        if literal is not None:
            yield literal
        if name != WILDCARD:
            everything = self._literals.get((type, WILDCARD))
            if everything is not None:
                yield everything
        lengths = self._lengths.get(type)
        if lengths is not None:
            for length in lengths[: bisect_right(lengths, len(name))]:
                prefixed = self._prefixes.get((type, name[:length]))
                if prefixed is not None:
                    yield prefixed


def operation_bits(operations: Iterable[Operation]) -> int:
    """Bit n stands for the operation of number n."""
    return sum(1 << each for each in operations)
