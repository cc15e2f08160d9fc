"""The data pipeline on Spark: source and sink of the format "muster", and the jobs of `muster-pipeline`.

Running it requires the extra `[spark]` and Java 17 or later; importing this package requires neither.
"""
