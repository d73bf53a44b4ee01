"""The command `millstream`: one module or package per subcommand.

It owns options, output and exit codes. Brokers, clients and Spark jobs do the work.
"""
