"""`firearrow pipeline`: jobs on a store or a cluster with Spark."""
