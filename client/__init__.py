"""The protocol client, on asyncio: one connection, a cluster of them, and what the commands need above it.

It speaks to any Kafka broker and knows `muster.protocol` alone. Every call takes a deadline in the running
loop's time (`deadline(seconds)`), and none outlasts it.
"""
