"""One story that every stock client lives through, against Apache Kafka and against muster.

`python -m tests.interop.story --client NAME --target serve` plays one, `make interop` plays all.
`clients/base.py` says what a client's programs have to do, `story.py` what happens, `checker.py` what must
not.
"""
