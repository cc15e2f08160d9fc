"""Transactions of a broker that is killed in the middle of them: who makes them, who reads, and what must
hold."""
