"""`python -m muster.protocol JoinGroupRequest 9` prints the compiled codec of a message version.

Without arguments: every message with its versions. Without a version: the newest.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence

from muster.protocol import api, compiler
from muster.protocol.message import RECORDS, REQUESTS, RESPONSES, Message


def messages() -> dict[str, type[Message]]:
    """Every declared message by name: requests and responses by api key, then the records."""
    import muster.protocol.embedded  # noqa: F401 - declares the ConsumerProtocol blobs

    api.load_messages()
    by_key = {(key, 0): cls for key, cls in REQUESTS.items()} | {
        (key, 1): cls for key, cls in RESPONSES.items()
    }
    classes = [by_key[key] for key in sorted(by_key)] + [RECORDS[name] for name in sorted(RECORDS)]
    return {cls.__name__: cls for cls in classes}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for a message or version that is not declared."""
    parser = argparse.ArgumentParser(
        prog="python -m muster.protocol", description="Print the compiled codec of a Kafka message."
    )
    parser.add_argument("message", nargs="?", help="for example JoinGroupRequest; all are listed if left out")
    parser.add_argument("version", nargs="?", type=int, help="the newest if left out")
    options = parser.parse_args(arguments)
    known = messages()
    if options.message is None:
        for cls in known.values():
            print(_summary(cls))
        return 0
    chosen = known.get(options.message)
    if chosen is None:
        close = difflib.get_close_matches(options.message, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "run without arguments to see all."
        print(f"There is no message {options.message}; {hint}", file=sys.stderr)
        return 2
    versions = chosen.__schema__.versions
    version = versions.last if options.version is None else options.version
    if version not in versions:
        print(f"{chosen.__name__} has versions {versions}, not {version}.", file=sys.stderr)
        return 2
    print(compiler.source(chosen, version), end="")
    return 0


def _summary(cls: type[Message]) -> str:
    schema = cls.__schema__
    key = "record" if schema.kind == "record" else f"api {schema.api_key}"
    flexible = f"flexible {schema.flexible}"
    return f"{cls.__name__:32} {key:8} versions {schema.versions!s:6} {flexible}"


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BrokenPipeError:  # a pager or head that closed the pipe
        raise SystemExit(1) from None
