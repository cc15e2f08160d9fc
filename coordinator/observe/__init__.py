"""What a broker tells about its groups: lag, recovery, a log line per rebalance."""
