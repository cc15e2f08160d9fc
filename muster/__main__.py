"""The `muster` command, also as `python -m muster`."""


def main() -> int:
    """Run the command and return its exit code: 130 on Ctrl-C, also while its modules are imported."""
    try:
        from muster.coordinator import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
