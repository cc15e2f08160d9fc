"""Runs a `muster-pipeline` command, then a user's own script in the same process."""

import runpy
import sys
from pathlib import Path

from muster.pipeline.cli import main

servers, lake = sys.argv[1:]
code = main(["ingest", "--topics", "orders", "--bootstrap-server", servers, "--to", lake])
if code:
    sys.exit(code)
sys.argv[0] = str(Path(__file__).with_name("own_job.py"))
runpy.run_path(sys.argv[0], run_name="__main__")
