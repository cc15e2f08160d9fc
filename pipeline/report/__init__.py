"""The report: from the tables of `muster-pipeline rebalances` to pictures and a page, without Spark."""
