"""Why a group rebalanced: pure functions from journal entries to explanations.

    explanation = explain(entries, group="billing")
    print("\\n".join(explanation.lines()))

Entries are in the order they were written. Nothing here uses a clock or imports the core: it sees what any
client can read from `__group_events`.
"""

from muster.coordinator.journal.explain.explanation import diagnosed as diagnosed
from muster.coordinator.journal.explain.explanation import explain as explain
from muster.coordinator.journal.explain.explanation import explain_all as explain_all
from muster.coordinator.journal.explain.explanation import explained as explained
from muster.coordinator.journal.explain.findings import Finding as Finding
from muster.coordinator.journal.explain.rebalances import Outcome as Outcome
from muster.coordinator.journal.explain.rebalances import Rebalance as Rebalance
from muster.coordinator.journal.explain.rebalances import rebalances as rebalances
from muster.coordinator.journal.explain.telling import about as about
from muster.coordinator.journal.explain.telling import describe as describe
from muster.coordinator.journal.explain.tracks import Tracks as Tracks
from muster.coordinator.journal.explain.vocabulary import Certainty as Certainty
from muster.coordinator.journal.explain.vocabulary import Diagnosis as Diagnosis
from muster.coordinator.journal.explain.words import Alternative as Alternative
from muster.coordinator.journal.explain.words import Explanation as Explanation
