"""The assignor `uniform`: loads as even as subscriptions allow, and then as few moves as possible."""

from __future__ import annotations

from muster.coordinator.group.consumer.assignors.assignor import Assignment, Spec
from muster.coordinator.group.consumer.assignors.equal import share_equally
from muster.coordinator.group.consumer.assignors.unequal import share_unequally


def uniform(spec: Spec) -> dict[str, Assignment]:
    if not spec.members:
        return {}
    return share_equally(spec) if spec.homogeneous else share_unequally(spec)
