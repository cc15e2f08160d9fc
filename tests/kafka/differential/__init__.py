"""Random sequences of requests against groups, played to Apache Kafka and to muster at once.

    python -m tests.kafka.differential --kind consumer --sequences 1000 --seed 7

A sequence is a scenario (tests/group/scenarios) that a seed has written: `generator` of classic groups,
`consumer_generator` of consumer groups and of groups that go over from one protocol to the other. `player`
plays one to a broker over pooled connections, `duel` plays it to both step by step and stops at the first
answer that differs and that `deliberate` does not know. muster has the ids of topics and members from Kafka
(`same_ids`), so that each partition has to go to the same member; what muster is known to do otherwise before
any answer shows it is `watched`. A `campaign` plays many; `shrink` drops what a difference does not need, and
what is left is printed as a scenario, ready to be put beside the others.
"""
