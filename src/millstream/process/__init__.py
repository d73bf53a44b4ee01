"""Server processes on this machine: brokers, etcd members, and whatever a test or benchmark adds.

It owns command lines, ports, log files and the life of a child process, and imports nothing of the
broker. Which processes form a cluster and what they are for is up to the CLI, tests and benchmarks.
"""
