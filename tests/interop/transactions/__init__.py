"""Exactly once with stock clients: topic to topic in transactions, with workers (and brokers) that are
killed.

`clients.py` says what a client's program does, `play.py` what happens to it, `checker.py` what must be there
at the end; `frameworks.py` lists the frameworks, most of which have plays of their own. `python -m
tests.interop.transactions --client NAME --target kafka` plays one, `make exactly-once` plays a long one; both
print their seed and accept it again.
"""
