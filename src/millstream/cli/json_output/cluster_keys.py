"""The JSON output of commands about clusters, brokers, hosts and this program."""

from __future__ import annotations

from typing import Final

from millstream.cli.json_output.form import JsonOutput, by_name, lines, one, rows
from millstream.cli.json_output.topic_keys import RESULT

_BROKER: Final = {
    "broker": "The id of the broker.",
    "state": "`alive`, `down`, `decommissioning` or `decommissioned`.",
    "address": "Host and port, or null if the broker is down.",
    "rack": "The rack, or null.",
    "controller": "Whether it is the controller.",
    "leads": "The number of partitions that it leads.",
    "replicas": "The number of replicas that it holds.",
    "moving": "The number of its replicas that move to another broker.",
    "out_of_sync": "The number of its replicas that are not in sync.",
}
_PROFILE: Final = {
    "profile": "The profile.",
    "current": "Whether commands use it by default.",
    "bootstrap_servers": "The brokers to connect to first, or null.",
    "schema_registry": "The address of the schema registry, or null.",
    "properties": "The client properties by name. Passwords are masked.",
}

_QUOTA_ENTITY: Final = {
    "user": "The user, empty for the default of users, or null.",
    "client_id": "The client id, empty for the default of client ids, or null.",
    "ip": "The address, empty for the default of addresses, or null.",
}

CLUSTER: Final[dict[str, JsonOutput]] = {
    "cluster up": rows(
        {
            "process": "The process: `etcd-1`, `broker-1`.",
            "address": "Host and port.",
            "rack": "The rack of a broker, or null.",
            "pid": "The process id.",
            "log": "The log file.",
        }
    ),
    "cluster status": one(
        {
            "healthy": "Whether no broker is missing and all replicas are in sync.",
            "cluster_id": "The id of the cluster.",
            "controller": "The id of the controller, or null.",
            "brokers": "The number of live brokers.",
            "missing_brokers": "The ids of brokers that hold replicas and are down.",
            "topics": "The number of topics.",
            "partitions": "The number of partitions.",
            "without_leader": "The number of partitions without a leader.",
            "without_in_sync_replica": "The number of partitions without an in-sync replica.",
            "under_replicated": "The number of partitions with a replica that is not in sync.",
            "not_led_by_preferred": "The number of partitions that another replica leads.",
        }
    ),
    "cluster brokers": rows(
        {
            "broker": "The id of the broker.",
            "host": "The host.",
            "port": "The port.",
            "rack": "The rack, or null.",
            "controller": "Whether it is the controller.",
            "leads": "The number of partitions that it leads.",
            "replicas": "The number of replicas that it holds.",
            "out_of_sync": "The number of its replicas that are not in sync.",
        }
    ),
    "cluster partitions": rows(
        {
            "topic": "The topic.",
            "partition": "The partition.",
            "leader": "The id of the leader, or null.",
            "replicas": "The ids of the replicas. The first is the preferred leader.",
            "isr": "The ids of the in-sync replicas.",
        }
    ),
    "cluster elect": rows(
        {
            "topic": "The topic.",
            "partition": "The partition.",
            "result": "`elected`, `not needed` or `failed`.",
            "error?": "Why it failed.",
        }
    ),
    "broker list": rows(_BROKER),
    "broker decommission": one(_BROKER),
    "broker config describe": rows(
        {
            "setting": "The name of the setting.",
            "value": "The value, or null if it is secret or empty.",
            "source": "Where the value is set: `broker`, `cluster`, `static` or `default`.",
            "read_only": "Whether only a restart changes the value.",
            "sensitive": "Whether the value is secret.",
        }
    ),
    "broker config set": rows({"setting": "The name of the setting.", **RESULT}),
    "broker config unset": rows({"setting": "The name of the setting.", **RESULT}),
    "quota list": rows({**_QUOTA_ENTITY, "quotas": "The values by the names of the quotas."}),
    "quota set": rows({**_QUOTA_ENTITY, "quota": "The name of the quota.", **RESULT}),
    "quota delete": rows({**_QUOTA_ENTITY, "quota": "The name of the quota.", **RESULT}),
    "doctor": one(
        {
            "healthy": "Whether no check is `unhealthy`.",
            "checks": "The checks, in order.",
            "checks[].scope": "`host` or `cluster`.",
            "checks[].check": "The name of the check.",
            "checks[].state": "`healthy`, `warning`, `unhealthy` or `skipped`.",
            "checks[].found": "What was found.",
            "checks[].advice": "What to do, or null.",
        }
    ),
    "profile create": one({"profile": "The profile.", "result": "`created` or `replaced`."}),
    "profile use": one({"profile": "The profile, or null.", "result": "`selected`."}),
    "profile list": rows(_PROFILE),
    "profile show": one(_PROFILE),
    "profile delete": one({"profile": "The profile.", "result": "`deleted`."}),
    "log dump": lines(
        {
            "file": "The file.",
            "type": "`batch`, `record`, `entry`, `damage` or `summary`.",
            **{
                f"{name}?": f"A field of the {kind}."
                for kind, names in {
                    "batch": (
                        *("size", "base_offset", "count", "codec", "timestamp_type"),
                        *("base_timestamp", "max_timestamp", "leader_epoch", "base_sequence"),
                        *("transactional", "control", "delete_horizon_ms", "crc"),
                    ),
                    "record": ("key", "key_base64", "value", "value_base64", "headers"),
                    "index entry": ("offset", "position", "timestamp"),
                    "transaction index entry": (
                        *("version", "producer_id", "first_offset", "last_offset"),
                        "last_stable_offset",
                    ),
                    "producer snapshot entry": (
                        *("producer_epoch", "last_sequence", "offset_delta"),
                        *("coordinator_epoch", "transaction_start_offset"),
                    ),
                    "checkpoint entry": ("topic", "partition", "epoch", "start_offset"),
                    "damage": ("message",),
                    "summary": ("batches", "records", "end_offset", "entries"),
                }.items()
                for name in names
            },
        }
    ),
    "serve": lines(
        {
            "time": "The time of the log line, as ISO 8601 in UTC.",
            "level": "`debug`, `info`, `warning`, `error` or `critical`.",
            "logger": "The name of the logger.",
            "message": "The message.",
            "exception?": "The stack trace.",
        }
    ),
    "serve --check": by_name(
        {"value": "The value of the setting, or null.", "source": "Where the value is set."}
    ),
    "tls init": one(
        {
            "folder": "The folder of all files.",
            "authority": "The certificate of the authority, which brokers and clients trust.",
            "made": "The files that this call has made.",
            "serve": "The settings of a broker with TLS, by name.",
            "client": "The properties of a client without a certificate, by name.",
            "clients": "The clients with a certificate.",
            "clients[].name": "The name of the client.",
            "clients[].principal": "The client's principal for ACLs.",
            "clients[].file": "The file with the certificate and the key.",
            "clients[].properties": "The properties of the client, by name.",
        }
    ),
    "version": one(
        {
            "millstream": "The version of Millstream.",
            "python": "The version of Python.",
            "confluent_kafka": "The version of confluent-kafka.",
            "librdkafka": "The version of librdkafka.",
        }
    ),
}
