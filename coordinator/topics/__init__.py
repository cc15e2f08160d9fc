"""The data plane: the topic catalogue, partition logs, long-poll fetches, producer state, retention and
compaction."""
