"""The client commands: topics, groups, users, top, cluster, produce, consume. They work with muster and
Apache Kafka.

Nothing here is imported until it is needed: `muster serve` starts without it. Each module declares its
options in `declare` and imports what it needs only then.
"""
