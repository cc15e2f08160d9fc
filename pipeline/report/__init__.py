"""The report: a page with pictures, made from the tables of `muster-pipeline rebalances`, without Spark."""
