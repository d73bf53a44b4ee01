"""The `millstream job` commands, which run Spark jobs on whole topics.

It owns options, progress and exit codes; `spark.job` owns the jobs.
"""
