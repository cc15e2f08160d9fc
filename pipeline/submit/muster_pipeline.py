"""The command `muster-pipeline` as a file, which is what spark-submit takes.

It has a folder of its own: Python looks for modules in the folder of a script before all others.
"""

from __future__ import annotations

import sys

from muster.pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
