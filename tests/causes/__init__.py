"""Why a group rebalanced: real clients perform each action, and muster is asked for the cause.

The truth comes from the script that drove the client (`cases`), never from muster. `make causes` runs all
cases; `python -m tests.causes --table` also writes the table in docs/why.md.
"""
