"""Groups of the consumer protocol (KIP-848), and groups that migrate between the protocols while they run,
with stock clients and our own.

`lives.py` says what happens to a group, `playing.py` has the tools for it; the programs are those of the
story.
"""
