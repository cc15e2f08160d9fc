"""The data pipeline on Spark: a source and a sink of the format "muster", and the jobs of `muster-pipeline`.

It takes the extra `[spark]` and Java 17 or later. Importing this package needs neither.
"""
