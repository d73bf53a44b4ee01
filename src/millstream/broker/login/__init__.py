"""Logins of clients on listeners with SASL, and of this broker at other brokers.

The mechanisms belong to `security/sasl/`. This package runs them: it keeps the state of each
connection's login, limits failures, and counts and records the outcomes.
"""
