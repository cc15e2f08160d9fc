"""What `check_executors` reports on a real cluster: a JSON list of messages, null for none, in the file TOLD.

questions.py TOLD BROKER_PORT CLOSED_PORT PYTHON...     # the Pythons that workers are made to run
"""

import json
import sys
from pathlib import Path
from typing import Any

from muster.pipeline.errors import PipelineError, from_spark
from muster.pipeline.executors import check_executors
from muster.pipeline.session import spark_session

told, broker_port, closed_port, *pythons = sys.argv[1:]
spark = spark_session("questions")
reached, closed = ("127.0.0.1", int(broker_port)), ("127.0.0.1", int(closed_port))


def asked(**more: Any) -> str | None:
    try:
        check_executors(spark, **more)
    except PipelineError as error:
        return str(error)
    except Exception as error:
        return from_spark(error) or f"not told: {error!r}"
    return None


answers = [asked(brokers=[reached]), asked(brokers=[reached, closed])]
for python in pythons:
    spark.sparkContext.pythonExec = python
    answers.append(asked())
Path(told).write_text(json.dumps(answers))
spark.stop()
