"""The commands that are clients: topics, groups, cluster, produce, consume. They speak to muster and to
Apache Kafka alike.

They stand beside `coordinator/cli.py` because `muster` is one command with one parser and that is its root;
`client/` stays a library without printing or arguments. Nothing here is imported before it is called for:
`muster serve` starts without it. A module declares its options in `declare` and imports what it needs to
carry them out when it does so.
"""
