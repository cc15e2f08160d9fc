"""The transaction coordinator's core: synchronous, without clock, I/O, event loop or log of its own.

A `TransactionShard` owns the transactional ids of one partition of `__transaction_state`. As with groups,
every call into it is a step (`base.step`). It cannot write the markers of an ending transaction itself: it
emits the event `MarkersDue`, and whoever writes them calls `marked`.
"""
