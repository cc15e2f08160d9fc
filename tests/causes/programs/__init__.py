"""A member that does what it is told, in each client: `python -m tests.causes.programs.NAME OPTIONS`.

It prints facts, one JSON object a line (what it was `assigned`; in the consumer protocol, what it has
`gained` and `lost`), and reads commands, a line each:

- `nap SECONDS`: does not poll for so long, while the client's background work goes on;
- `block SECONDS`: does nothing at all for so long, on the thread (or loop) that polls;
- `subscribe TOPIC,TOPIC`: to these instead;
- `close`, or the end of the input: closes the consumer, and ends.
"""
