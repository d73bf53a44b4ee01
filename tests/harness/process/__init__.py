"""Servers as child processes: brokers, clusters, Apache Kafka, etcd, databases and others."""
