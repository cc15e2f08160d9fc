"""Why a group rebalanced: real clients are made to do each thing, and muster is asked what it was.

What happened is known from the script that drove the client (`cases`), never from muster. `make causes` runs
all of it; `python -m tests.causes --table` also writes the table in docs/why.md.
"""
