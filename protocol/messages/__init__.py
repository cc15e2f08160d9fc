"""Declarations of Kafka's messages, one file per family.

Classes, structs and fields have Kafka's names, fields in snake_case; a struct's name drops the message's name
as a prefix (Kafka's OffsetCommitRequestTopic is `OffsetCommitRequest.Topic`). A struct inside a struct is
declared there, since a class body cannot see its neighbours, and has an alias in the message:
`OffsetCommitRequest.Partition` is `OffsetCommitRequest.Topic.Partition`. Mypy mistakes such an alias for a
malformed dataclass field, hence `type: ignore[misc]`.

Unless stated otherwise, a default is Kafka's. Points in time are epoch milliseconds, durations milliseconds;
the names of both end in `_ms`.
"""
