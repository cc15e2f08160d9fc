"""What the store says to PostgreSQL, each change as one statement.

A statement is a transaction of its own, so no lock is ever held by a broker that stands still between two of
them. (`records.append` with deletes and more is the one exception.) Where a statement locks rows and then
changes others, the locking comes first by data: what is changed is joined with what was locked. Under READ
COMMITTED a row that was waited for is looked at anew, in its last version, and only that row: so whatever a
change is decided by must be locked, not merely read.

A change that moves the revision answers the new one, or None.
"""

from muster.coordinator.storage.postgres.statements import broker_configs as broker_configs
from muster.coordinator.storage.postgres.statements import journal as journal
from muster.coordinator.storage.postgres.statements import leases as leases
from muster.coordinator.storage.postgres.statements import letters as letters
from muster.coordinator.storage.postgres.statements import meta as meta
from muster.coordinator.storage.postgres.statements import nodes as nodes
from muster.coordinator.storage.postgres.statements import records as records
from muster.coordinator.storage.postgres.statements import topics as topics
