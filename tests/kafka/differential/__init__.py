"""Random sequences of requests to groups, played against Apache Kafka and muster at the same time.

    python -m tests.kafka.differential --kind consumer --sequences 1000 --seed 7

A sequence is a scenario (tests/group/scenarios) written from a seed: `generator` writes those of classic
groups, `consumer_generator` those of consumer groups and of groups that migrate between the protocols.
`player` plays one against a broker over pooled connections; `duel` plays it against both step by step and
stops at the first differing answer that `deliberate` does not know. muster takes the ids of topics and
members from Kafka (`same_ids`), so that each partition has to go to the same member; where muster is known to
behave differently before any answer shows it, it is `watched`. A `campaign` plays many sequences; `shrink`
drops what a difference does not need, and the rest is printed as a scenario, ready to join the others.
"""
