"""The transaction coordinator's core: synchronous, without clock, I/O, event loop or log of its own.

A `TransactionShard` owns the transactional ids of one partition of `__transaction_state`. As with groups,
every call into it is a step (`base.step`). What it cannot do itself, writing the markers of a transaction
that is to end, it tells of as an event, `MarkersDue`; whoever writes them tells it with `marked`.
"""
