"""Server-side assignors of consumer groups (KIP-848): which member gets which partition. Pure functions.

`ASSIGNORS` holds them by the names that members send and that `group.consumer.assignors` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from muster.coordinator.group.consumer.assignors.assignor import Assign, Assignment, Spec, Subscriber
from muster.coordinator.group.consumer.assignors.range import by_range
from muster.coordinator.group.consumer.assignors.uniform import uniform

__all__ = ["ASSIGNORS", "Assign", "Assignment", "Spec", "Subscriber"]

ASSIGNORS: Final[Mapping[str, Assign]] = MappingProxyType({"uniform": uniform, "range": by_range})
