"""What an application can do about an error code of a broker. Pure."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

_NO_TOPIC: Final = (
    "The topic does not exist, and the brokers do not create it: create it with "
    "Admin().create_topic() or `millstream topic create`."
)
_STEPS: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "Send a smaller record, or raise the topic's max.message.bytes and the producer's "
        "config={'message.max.bytes': ...}."
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: _NO_TOPIC,
    KafkaError._UNKNOWN_TOPIC: _NO_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION: (  # noqa: SLF001
        "The topic has no such partition: pass a lower number, or leave partition out."
    ),
    KafkaError.TOPIC_EXCEPTION: (
        "A topic's name has up to 249 letters, digits, '.', '_' and '-': choose such a name."
    ),
    KafkaError.TOPIC_ALREADY_EXISTS: "Choose another name, or pass if_missing=True to keep it.",
    KafkaError.NOT_ENOUGH_REPLICAS: (
        "Fewer replicas are in sync than min.insync.replicas: start the missing brokers."
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Ask for the permission to use this topic.",
    KafkaError.SECURITY_DISABLED: (
        "The brokers check no rights: set authorizer.class.name and super.users first."
    ),
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Ask for the permission to use this group.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Ask for the permission to do this on the cluster.",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "Ask for the permission to use this transactional_id."
    ),
    KafkaError.GROUP_ID_NOT_FOUND: "Check the name: Admin().list_groups() returns all groups.",
    KafkaError.NON_EMPTY_GROUP: "Stop the members of the group first.",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: (
        "The members of the group have no assignor in common: use another group_id, or the "
        "assignor of the others, config={'partition.assignment.strategy': 'range,roundrobin'}."
    ),
    KafkaError.FENCED_INSTANCE_ID: (
        "Another member has this group_instance_id: give each member one of its own."
    ),
    KafkaError.INVALID_SESSION_TIMEOUT: (
        "Pass a session_timeout between the brokers' group.min.session.timeout.ms and "
        "group.max.session.timeout.ms."
    ),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "Pass a transaction_timeout of at most the brokers' transaction.max.timeout.ms."
    ),
    KafkaError.INVALID_RECORD: (
        "A topic with cleanup.policy=compact takes only records with a key: pass key=..."
    ),
    KafkaError.INVALID_TIMESTAMP: (
        "Pass a timestamp that the topic's message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms allow."
    ),
    KafkaError.INVALID_REPLICATION_FACTOR: (
        "There are fewer brokers than replicas: pass a lower replication_factor."
    ),
}


def next_step(code: int) -> str:
    """Return a sentence for the error code, or nothing."""
    return _STEPS.get(code, "")
