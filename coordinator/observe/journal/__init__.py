"""What happened in groups, entry by entry: kept in memory, stored beside what it tells of, read by any
client."""
