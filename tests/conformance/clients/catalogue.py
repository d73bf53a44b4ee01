"""All clients by name, for parametrization."""

from __future__ import annotations

from clients.aio import AiokafkaClient
from clients.confluent import ConfluentAdmin, ConfluentClient
from clients.contract import Admin, Client
from clients.kafka_python import KafkaPythonAdmin, KafkaPythonClient
from clients.kcat import KcatClient
from clients.lines import JavaAdmin, JavaClient, KafkajsAdmin, KafkajsClient

CLIENTS: dict[str, type[Client]] = {
    kind.name: kind
    for kind in (
        ConfluentClient,
        AiokafkaClient,
        KafkaPythonClient,
        KcatClient,
        KafkajsClient,
        JavaClient,
    )
}

ADMINS: dict[str, type[Admin]] = {
    kind.name: kind for kind in (JavaAdmin, ConfluentAdmin, KafkaPythonAdmin, KafkajsAdmin)
}
