"""`python -m muster.coordinator` is the `muster` command too."""

from __future__ import annotations

from muster.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
