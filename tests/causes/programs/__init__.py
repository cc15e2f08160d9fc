"""A member that obeys commands, one program per client: `python -m tests.causes.programs.NAME OPTIONS`.

It prints facts, one JSON object a line (what it was `assigned`; in the consumer protocol, what it `gained`
and `lost`), and reads commands, one per line:

- `nap SECONDS`: does not poll for that long, while the client's background work continues;
- `block SECONDS`: blocks the thread (or loop) that polls for that long;
- `subscribe TOPIC,TOPIC`: subscribes to these topics instead;
- `close`, or end of input: closes the consumer and exits.
"""
