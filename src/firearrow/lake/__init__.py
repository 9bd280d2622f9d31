"""Topics as typed tables of Delta Lake and Iceberg: columns from bodies, each message once.

Workers without a JVM write the tables, on the engine of archives (``firearrow.spark.jobs.archive``).
"""
