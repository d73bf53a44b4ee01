"""The benchmark: Millstream beside Apache Kafka, same machine, same tools, same run. See `python
-m bench -h`.
"""
