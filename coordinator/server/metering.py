"""What clients have used of their quotas: the state behind `quota_gate`, and the admin APIs' mutations."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.quotas import MUTATIONS, Limit
from muster.coordinator.security.rates import Rate, TokenBucket
from muster.coordinator.server.kept_quotas import KeptQuotas
from muster.protocol.errors import ErrorCode, KafkaError

_METERS_MAX: Final = 20_000
"""Rates and buckets; beyond this, those no longer in use are dropped first."""
_ROOM: Final = 10
"""One in so many is dropped at once when all are in use: to look at all of them for each new one is slow."""

_Meter = tuple[str, tuple[str | None, str | None]]
"""A quota, and the users and clients that share it."""


class Meters:
    """What was used on one broker: quotas are per broker, as in Kafka."""

    def __init__(self, quotas: KeptQuotas, clock: Clock) -> None:
        self._quotas = quotas
        self._clock = clock
        self._rates: dict[_Meter, Rate] = {}
        self._buckets: dict[_Meter, TokenBucket] = {}

    def __repr__(self) -> str:
        return f"<Meters {len(self._rates)} rates, {len(self._buckets)} buckets>"

    def limit(self, key: str, context: RequestContext) -> Limit | None:
        """The client's quota; None if it has none."""
        quotas = self._quotas.in_force
        return quotas.limit(key, user_of(context), context.client_id) if len(quotas) else None

    def throttle_ms(self, key: str, context: RequestContext) -> int:
        """How many milliseconds the client must wait for what was used so far."""
        limit = self.limit(key, context)
        rate = None if limit is None else self._rates.get((key, limit.shared_by))
        return 0 if limit is None or rate is None else rate.throttle_ms(limit.value, self._clock.now_ms())

    def record(self, key: str, amount: float, context: RequestContext) -> int:
        """Count what the client used of its quota; returns how many milliseconds it must wait."""
        limit = self.limit(key, context)
        if limit is None:
            return 0
        now_ms = self._clock.now_ms()
        rate = self._rate(key, limit, now_ms)
        rate.record(amount, now_ms)
        return rate.throttle_ms(limit.value, now_ms)

    # --- mutations (KIP-599) --------------------------------------------------------------------------------

    def mutations(self, context: RequestContext, *, strict_from: int) -> Mutations:
        """The quota for what a request creates and deletes. Versions from `strict_from` on know
        THROTTLING_QUOTA_EXCEEDED."""
        return Mutations(self, context, strict=context.api_version >= strict_from)

    def mutated(self, partitions: int, context: RequestContext) -> None:
        """Count partitions that were created or deleted."""
        limit = self.limit(MUTATIONS, context)
        if limit is None:
            return
        now_ms = self._clock.now_ms()
        bucket = self._buckets.get((MUTATIONS, limit.shared_by))
        if bucket is None:
            self._make_room(now_ms)
            bucket = self._buckets[MUTATIONS, limit.shared_by] = TokenBucket(now_ms)
        bucket.spend(partitions, limit.value, now_ms)

    def mutation_throttle_ms(self, context: RequestContext) -> int:
        """How long the client must wait because of what it has created and deleted."""
        limit = self.limit(MUTATIONS, context)
        bucket = None if limit is None else self._buckets.get((MUTATIONS, limit.shared_by))
        if limit is None or bucket is None:
            return 0
        return bucket.throttle_ms(limit.value, self._clock.now_ms())

    # --- inside ---------------------------------------------------------------------------------------------

    def _rate(self, key: str, limit: Limit, now_ms: int) -> Rate:
        rate = self._rates.get((key, limit.shared_by))
        if rate is None:
            self._make_room(now_ms)
            rate = self._rates[key, limit.shared_by] = Rate()
        return rate

    def _make_room(self, now_ms: int) -> None:
        """Limit the number of meters: clients choose their ids, so there may be any number of them."""
        if len(self._rates) + len(self._buckets) < _METERS_MAX:
            return
        both: tuple[dict[_Meter, Any], ...] = (self._rates, self._buckets)
        for meters in both:
            for meter in [each for each, kept in meters.items() if kept.is_over(now_ms)]:
                del meters[meter]
        if sum(map(len, both)) > _METERS_MAX - _METERS_MAX // _ROOM:
            for meters in both:
                for meter in list(islice(meters, -(-len(meters) // _ROOM))):
                    del meters[meter]


class Mutations:
    """The mutation quota, as one request uses it. Once the quota is used up, a `strict` request is refused,
    and waits only then; any other is served, and waits for what it has overdrawn."""

    __slots__ = ("_context", "_meters", "_refused", "_strict")

    def __init__(self, meters: Meters, context: RequestContext, *, strict: bool) -> None:
        self._meters = meters
        self._context = context
        self._strict = strict
        self._refused = False

    def use(self, partitions: int) -> None:
        """Count partitions that are about to be created or deleted, or would be without validate_only.
        Raises THROTTLING_QUOTA_EXCEEDED."""
        if self._strict and self._meters.mutation_throttle_ms(self._context):
            self._refused = True
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        self._meters.mutated(partitions, self._context)

    @property
    def throttle_ms(self) -> int:
        """How long the client must wait."""
        waits = self._refused or not self._strict
        return self._meters.mutation_throttle_ms(self._context) if waits else 0


def user_of(context: RequestContext) -> str:
    """The name of the client's user, without the type of its principal."""
    return context.principal.partition(":")[2]
