"""Transactions of a broker that is killed in the middle of them: their producers, their readers, and what
must hold."""
