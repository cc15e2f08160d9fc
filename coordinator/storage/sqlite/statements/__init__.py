"""The store's operations on its sqlite tables, as plain functions inside the caller's transaction."""

from muster.coordinator.storage.sqlite.statements import broker_configs as broker_configs
from muster.coordinator.storage.sqlite.statements import journal as journal
from muster.coordinator.storage.sqlite.statements import leases as leases
from muster.coordinator.storage.sqlite.statements import meta as meta
from muster.coordinator.storage.sqlite.statements import records as records
from muster.coordinator.storage.sqlite.statements import topics as topics
