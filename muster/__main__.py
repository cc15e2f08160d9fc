"""`python -m muster` is the `muster` command."""

from muster.coordinator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
