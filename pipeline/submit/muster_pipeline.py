"""The command `muster-pipeline` as a file, which is what spark-submit takes.

It has its own folder, because Python looks for modules in a script's folder before all others.
"""

from __future__ import annotations

import sys

from muster.pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
