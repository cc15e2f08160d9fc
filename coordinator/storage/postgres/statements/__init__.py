"""The store's PostgreSQL statements, one for each change.

A statement is a transaction of its own, so a broker that stalls between two of them never holds a lock.
(`records.append` with deletes and more is the one exception.) Where a statement locks rows and then changes
others, a data dependency makes the locking come first: what is changed is joined with what was locked. Under
READ COMMITTED a row that was waited for is read again, in its latest version, and only that row: so whatever
decides a change must be locked, not merely read.

A change that may move the revision returns the new one, or None.
"""

from muster.coordinator.storage.postgres.statements import broker_configs as broker_configs
from muster.coordinator.storage.postgres.statements import journal as journal
from muster.coordinator.storage.postgres.statements import leases as leases
from muster.coordinator.storage.postgres.statements import letters as letters
from muster.coordinator.storage.postgres.statements import meta as meta
from muster.coordinator.storage.postgres.statements import nodes as nodes
from muster.coordinator.storage.postgres.statements import records as records
from muster.coordinator.storage.postgres.statements import topics as topics
