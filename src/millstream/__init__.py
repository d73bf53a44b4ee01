"""Millstream: a distributed message queue that speaks the Apache Kafka wire protocol."""
