"""Groups of the consumer protocol (KIP-848), and groups that change their protocol while they run, of stock
clients and our own.

`lives.py` says what happens to a group, `playing.py` what all of them have at hand; the programs are those of
the story.
"""
