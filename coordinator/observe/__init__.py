"""What a broker reports about its groups: lag, recovery, a log line per rebalance."""
