"""Declarations of Kafka's messages, a file per family.

Classes, structs and fields bear Kafka's names, fields in snake_case; a struct's name loses the message's name
where it begins with it (Kafka's OffsetCommitRequestTopic is `OffsetCommitRequest.Topic`). A struct inside a
struct is declared there, since a class body cannot see its neighbours, and gets a name at the message as
well: `OffsetCommitRequest.Partition` is `OffsetCommitRequest.Topic.Partition`. Mypy takes such an alias for a
field that went wrong, as it would be in a dataclass; hence `type: ignore[misc]`.

Where nothing else is said, a default is Kafka's. Timestamps are epoch milliseconds, names ending in `_ms`
durations.
"""
