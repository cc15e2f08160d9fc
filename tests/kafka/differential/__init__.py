"""Random sequences of requests against classic groups, played to Apache Kafka and to muster at once.

    python -m tests.kafka.differential --sequences 1000 --seed 7

A sequence is a scenario (tests/group/scenarios) that a seed has written (`generator`). `player` plays one to
a broker over pooled connections, `duel` plays it to both step by step and stops at the first answer that
differs and that `deliberate` does not know. A `campaign` plays many; `shrink` drops what a difference does
not need, and what is left is printed as a scenario, ready to be put beside the others.
"""
