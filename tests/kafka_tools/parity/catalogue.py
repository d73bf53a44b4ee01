"""Every tool of Kafka and every subcommand of it, as scenarios that begin with an empty broker or
with what the scenarios before them have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_tools.parity.step import EVENTS, FIGURES, NUMBERS, Run, Start, Step, Stop, change

_PLAN = '{"version":1,"partitions":[{"topic":"moved","partition":0,"replicas":[1]}]}'
_BAD_PLAN = '{"version":1,"partitions":[{"topic":"moved","partition":0,"replicas":[1,9]}]}'
_MOVE = '{"version":1,"topics":[{"topic":"moved"}]}'
_LINES = "".join(f"key-{number}:value {number}\n" for number in range(10))
_KEYED = "--reader-property parse.key=true --reader-property key.separator=:"
_PRINT_ALL = " ".join(
    f"--formatter-property print.{what}=true"
    for what in ("key", "value", "partition", "offset", "headers", "epoch")
)
#: A row of the quorum has the id of a directory between its numbers.
_REPLICA = (NUMBERS, (r"^NUMBER [\w-]{22} ", "NUMBER ID "))


def _filled(topic: str, partitions: int = 1) -> list[Step]:
    """A topic with ten records."""
    return [
        change(f"kafka-topics --create --topic {topic} --partitions {partitions}"),
        change(f"kafka-console-producer --topic {topic} {_KEYED}", stdin=_LINES),
    ]


def _read_by(group: str, topic: str, rest: str = "") -> Step:
    """Have a group read ten records and commit."""
    return change(
        f"kafka-console-consumer --topic {topic} --group {group} --from-beginning"
        f" --max-messages 10 --timeout-ms 20000 {rest}"
    )


TOPICS: Sequence[Step] = (
    # Kafka's storage is formatted with this default, which every description of a topic shows.
    change("kafka-configs --alter --broker-defaults --add-config min.insync.replicas=1"),
    change("kafka-topics --create --topic plain"),
    change("kafka-topics --create --topic plain"),
    change("kafka-topics --create --topic plain --if-not-exists"),
    change(
        "kafka-topics --create --topic set --partitions 3 --replication-factor 1"
        " --config retention.ms=100000 --config cleanup.policy=compact"
    ),
    change("kafka-topics --create --topic placed --replica-assignment 1,1"),
    change("kafka-topics --create --topic wide --replication-factor 3"),
    change("kafka-topics --create --topic none --partitions 0"),
    change("kafka-topics --create --topic bad --config retention.ms=soon"),
    change("kafka-topics --create --topic bad --config no.such.config=1"),
    change("kafka-topics --create --topic with.dot"),
    change("kafka-topics --create --topic with_dot"),
    change("kafka-topics --create --topic in/valid"),
    Run("kafka-topics --list"),
    Run("kafka-topics --list --exclude-internal --topic p.*"),
    Run("kafka-topics --describe"),
    Run("kafka-topics --describe --topic set", capture=("topic_id", r"TopicId: (\S+)")),
    Run("kafka-topics --describe --topic-id {topic_id}"),
    Run("kafka-topics --describe --topic nowhere"),
    Run("kafka-topics --describe --topic nowhere --if-exists"),
    Run("kafka-topics --describe --topics-with-overrides"),
    Run("kafka-topics --describe --under-replicated-partitions"),
    Run("kafka-topics --describe --unavailable-partitions"),
    Run("kafka-topics --describe --under-min-isr-partitions"),
    Run("kafka-topics --describe --at-min-isr-partitions"),
    Run("kafka-topics --describe --topic set --partition-size-limit-per-response 1"),
    change("kafka-topics --alter --topic plain --partitions 4"),
    change("kafka-topics --alter --topic plain --partitions 2"),
    change("kafka-topics --alter --topic nowhere --partitions 2"),
    change("kafka-topics --alter --topic nowhere --partitions 2 --if-exists"),
    Run("kafka-topics --describe --topic plain"),
    change("kafka-topics --delete --topic plain"),
    change("kafka-topics --delete --topic nowhere"),
    change("kafka-topics --delete --topic nowhere --if-exists"),
    Run("kafka-topics --list"),
)

CONFIGS: Sequence[Step] = (
    change("kafka-topics --create --topic configured --config max.message.bytes=64000"),
    Run("kafka-configs --describe --entity-type topics --entity-name configured"),
    Run("kafka-configs --describe --entity-type topics --entity-name configured --all"),
    Run("kafka-configs --describe --topic nowhere"),
    change(
        "kafka-configs --alter --topic configured"
        " --add-config retention.ms=5000,cleanup.policy=[compact,delete]"
    ),
    change("kafka-configs --alter --topic configured --add-config flush.ms=often"),
    change("kafka-configs --alter --topic configured --add-config no.such=1"),
    change("kafka-configs --alter --topic configured --delete-config max.message.bytes"),
    change("kafka-configs --alter --topic configured --delete-config never.set"),
    change(
        "kafka-configs --alter --topic configured --add-config-file {settings}",
        files={"settings": "flush.messages=7\n"},
    ),
    Run("kafka-configs --describe --topic configured"),
    Run("kafka-configs --describe --broker 1"),
    Run("kafka-configs --describe --broker 1 --all"),
    Run("kafka-configs --describe --broker-defaults"),
    change("kafka-configs --alter --broker 1 --add-config log.cleaner.threads=2"),
    change("kafka-configs --alter --broker-defaults --add-config log.retention.ms=86400000"),
    change("kafka-configs --alter --broker 1 --add-config no.such=1"),
    change("kafka-configs --alter --broker 1 --add-config process.roles=broker"),
    change("kafka-configs --alter --broker 1 --add-config log.cleaner.threads=many"),
    Run("kafka-configs --describe --broker 1"),
    Run("kafka-configs --describe --broker-defaults"),
    Run("kafka-configs --describe --topic configured --all"),
    change("kafka-configs --alter --broker 1 --delete-config log.cleaner.threads"),
    change("kafka-configs --alter --broker-defaults --delete-config log.retention.ms"),
    Run("kafka-configs --describe --broker-defaults"),
    Run("kafka-configs --describe --broker 9"),
    Run("kafka-configs --describe --entity-type brokers"),
    Run("kafka-configs --describe --entity-type topics"),
)

BROKER_LOGGERS: Sequence[Step] = (
    Run("kafka-configs --describe --broker-logger 1"),
    change("kafka-configs --alter --broker-logger 1 --add-config root=DEBUG"),
    change("kafka-configs --alter --broker-logger 1 --delete-config root"),
    change("kafka-configs --alter --broker-logger 1 --add-config no.such.logger=DEBUG"),
    change("kafka-configs --alter --broker-logger 1 --add-config root=LOUD"),
)

QUOTAS: Sequence[Step] = (
    Run("kafka-configs --describe --entity-type users"),
    change("kafka-configs --alter --user anna --add-config producer_byte_rate=1024"),
    change("kafka-configs --alter --user-defaults --add-config consumer_byte_rate=2048"),
    change("kafka-configs --alter --client app --add-config request_percentage=50"),
    change("kafka-configs --alter --user anna --client app --add-config producer_byte_rate=1"),
    change("kafka-configs --alter --ip 127.0.0.9 --add-config connection_creation_rate=7"),
    change("kafka-configs --alter --user anna --add-config no_such_rate=7"),
    change(
        "kafka-configs --alter --user anna"
        " --add-config SCRAM-SHA-256=[iterations=4096,password=secret]"
    ),
    Run("kafka-configs --describe --user anna"),
    Run("kafka-configs --describe --user-defaults"),
    Run("kafka-configs --describe --client app"),
    Run("kafka-configs --describe --entity-type ips"),
    change("kafka-configs --alter --user anna --delete-config producer_byte_rate"),
    change("kafka-configs --alter --ip 127.0.0.9 --delete-config connection_creation_rate"),
)

GROUP_CONFIGS: Sequence[Step] = (
    Run("kafka-configs --describe --group tuned"),
    change("kafka-configs --alter --group tuned --add-config consumer.session.timeout.ms=50000"),
    change("kafka-configs --alter --group tuned --add-config consumer.session.timeout.ms=1"),
    change("kafka-configs --alter --group tuned --add-config no.such=1"),
    Run("kafka-configs --describe --group tuned"),
    Run("kafka-configs --describe --group tuned --all"),
    change("kafka-configs --alter --group tuned --delete-config consumer.session.timeout.ms"),
    Run("kafka-configs --describe --group tuned"),
)

CLIENT_METRICS: Sequence[Step] = (
    Run("kafka-client-metrics --list"),
    change(
        "kafka-client-metrics --alter --name basic --metrics org.apache.kafka.producer."
        " --interval 60000 --match client_software_name=apache-kafka-java"
    ),
    change("kafka-client-metrics --alter --name bad --interval 1"),
    change("kafka-client-metrics --alter --name bad --match no.such=1"),
    Run("kafka-client-metrics --list"),
    Run("kafka-client-metrics --describe"),
    Run("kafka-client-metrics --describe --name basic"),
    Run("kafka-client-metrics --describe --name nowhere"),
    Run("kafka-configs --describe --client-metrics basic"),
    change("kafka-client-metrics --delete --name basic"),
    change("kafka-client-metrics --delete --name nowhere"),
    Run("kafka-client-metrics --list"),
)

CONSUMER_GROUPS: Sequence[Step] = (
    *_filled("read", partitions=2),
    _read_by("old", "read", "--command-property group.protocol=classic"),
    _read_by("new", "read", "--command-property group.protocol=consumer"),
    Run("kafka-consumer-groups --list"),
    Run("kafka-consumer-groups --list --state"),
    Run("kafka-consumer-groups --list --state Empty --type classic"),
    Run("kafka-consumer-groups --list --type"),
    Run("kafka-consumer-groups --describe --group old"),
    Run("kafka-consumer-groups --describe --group old --verbose"),
    Run("kafka-consumer-groups --describe --group old --members"),
    Run("kafka-consumer-groups --describe --group old --state"),
    Run("kafka-consumer-groups --describe --group new --offsets --verbose"),
    # Epochs count the steps of a coordinator: clients only compare them.
    Run("kafka-consumer-groups --describe --group new --state --verbose", masks=(NUMBERS,)),
    Run("kafka-consumer-groups --describe --all-groups"),
    Run("kafka-consumer-groups --describe --all-groups --state"),
    Run("kafka-consumer-groups --describe --group nowhere"),
    Run("kafka-consumer-groups --describe --group nowhere --members"),
    Run("kafka-consumer-groups --validate-regex a.*"),
    Run("kafka-consumer-groups --validate-regex a["),
    *(
        Run(f"kafka-consumer-groups --reset-offsets --group {group} --topic read {to} --dry-run")
        for group in ("old", "new")
        for to in (
            "--to-earliest",
            "--to-latest",
            "--to-current",
            "--to-offset 3",
            "--shift-by -2",
            "--to-datetime 2020-01-01T00:00:00.000",
            "--by-duration P1D",
        )
    ),
    Run(
        "kafka-consumer-groups --reset-offsets --group old --all-topics --to-earliest --export"
        " --dry-run"
    ),
    change(
        "kafka-consumer-groups --reset-offsets --group old --from-file {offsets} --execute",
        files={"offsets": "read,0,1\nread,1,2\n"},
    ),
    change(
        "kafka-consumer-groups --reset-offsets --group new --topic read:0 --shift-by -1 --execute"
    ),
    change(
        "kafka-consumer-groups --reset-offsets --group old --topic nowhere --to-latest --execute"
    ),
    change(
        "kafka-consumer-groups --reset-offsets --group fresh --topic read --to-latest --execute"
    ),
    Run("kafka-consumer-groups --describe --group old"),
    Run("kafka-consumer-groups --describe --group new"),
    change("kafka-consumer-groups --delete-offsets --group old --topic read:0"),
    change("kafka-consumer-groups --delete-offsets --group old --topic nowhere"),
    change("kafka-consumer-groups --delete-offsets --group nowhere --topic read"),
    Run("kafka-consumer-groups --describe --group old"),
    change("kafka-consumer-groups --delete --group old"),
    change("kafka-consumer-groups --delete --group nowhere"),
    Run("kafka-consumer-groups --list"),
)


def _with_member(protocol: str) -> tuple[Step, ...]:
    group = f"live-{protocol}"
    return (
        Start(
            f"kafka-verifiable-consumer --topic read --group-id {group}"
            f" --group-protocol {protocol}",
            until="offsets_committed",
        ),
        Run(f"kafka-consumer-groups --describe --group {group}"),
        Run(f"kafka-consumer-groups --describe --group {group} --members"),
        Run(
            f"kafka-consumer-groups --describe --group {group} --members --verbose",
            masks=(NUMBERS,),
        ),
        Run(
            f"kafka-consumer-groups --describe --group {group} --state --verbose", masks=(NUMBERS,)
        ),
        Run("kafka-consumer-groups --list --state Stable"),
        change(f"kafka-consumer-groups --delete --group {group}"),
        change(f"kafka-consumer-groups --delete-offsets --group {group} --topic read"),
        change(
            f"kafka-consumer-groups --reset-offsets --group {group} --topic read"
            " --to-latest --execute"
        ),
        # The number of records that a poll returns varies.
        Stop(masks=(EVENTS,), is_distinct=True),
        Run(f"kafka-consumer-groups --describe --group {group} --state"),
    )


LIVE_GROUPS: Sequence[Step] = (*_with_member("classic"), *_with_member("consumer"))

GROUPS: Sequence[Step] = (
    Run("kafka-groups --list"),
    Run("kafka-groups --list --consumer"),
    Run("kafka-groups --list --share"),
    Run("kafka-groups --list --streams"),
    Run("kafka-groups --list --group-type classic"),
    Run("kafka-groups --list --protocol consumer"),
)

SHARE_GROUPS: Sequence[Step] = (
    Run("kafka-share-groups --list"),
    Run("kafka-share-groups --list --state"),
    Run("kafka-share-groups --describe --group sharing"),
    Run("kafka-share-groups --describe --group sharing --members"),
    Run("kafka-share-groups --describe --group sharing --state"),
    Run("kafka-share-groups --describe --all-groups"),
    Run("kafka-share-groups --reset-offsets --group sharing --topic read --to-earliest --dry-run"),
    change("kafka-share-groups --delete-offsets --group sharing --topic read"),
    change("kafka-share-groups --delete --group sharing"),
    change("kafka-console-share-consumer --topic read --group sharing --timeout-ms 2000"),
)

STREAMS_GROUPS: Sequence[Step] = (
    Run("kafka-streams-groups --list"),
    Run("kafka-streams-groups --list --state"),
    Run("kafka-streams-groups --describe --group streaming"),
    Run("kafka-streams-groups --describe --group streaming --members"),
    Run("kafka-streams-groups --describe --group streaming --state"),
    Run("kafka-streams-groups --describe --all-groups"),
    Run(
        "kafka-streams-groups --reset-offsets --group streaming --all-input-topics"
        " --to-earliest --dry-run"
    ),
    change("kafka-streams-groups --delete-offsets --group streaming --all-input-topics"),
    change("kafka-streams-groups --delete --group streaming"),
    Run("kafka-streams-application-reset --application-id app --input-topics read --dry-run"),
    change("kafka-streams-application-reset --application-id app --input-topics read"),
    change("kafka-streams-application-reset --application-id app --input-topics nowhere"),
)

TRANSACTIONS: Sequence[Step] = (
    *_filled("transacted"),
    change(
        "kafka-producer-perf-test --topic transacted --num-records 50 --throughput -1"
        " --record-size 10 --transactional-id teller --command-property acks=all",
        masks=(FIGURES, NUMBERS),
    ),
    Run("kafka-transactions list", masks=(NUMBERS,)),
    Run("kafka-transactions list --running-longer-than-ms 100000"),
    Run("kafka-transactions list --transactional-id-pattern tel.*", masks=(NUMBERS,)),
    Run("kafka-transactions describe --transactional-id teller", masks=(NUMBERS,)),
    Run("kafka-transactions describe --transactional-id nobody"),
    Run("kafka-transactions describe-producers --topic transacted --partition 0", masks=(NUMBERS,)),
    Run("kafka-transactions find-hanging --broker-id 1"),
    Run("kafka-transactions find-hanging --topic transacted --partition 0"),
    change("kafka-transactions abort --topic transacted --partition 0 --start-offset 10"),
    change(
        "kafka-transactions abort --topic transacted --partition 0 --producer-id 99999"
        " --producer-epoch 0 --coordinator-epoch 0"
    ),
    change("kafka-transactions forceTerminateTransaction --transactionalId teller"),
    change("kafka-transactions forceTerminateTransaction --transactionalId nobody"),
    Run(
        "kafka-console-consumer --topic transacted --from-beginning --max-messages 10"
        " --isolation-level read_committed",
        is_ordered=True,
    ),
)

RECORDS: Sequence[Step] = (
    *_filled("written"),
    Run(
        "kafka-console-consumer --topic written --from-beginning --max-messages 10", is_ordered=True
    ),
    Run(
        "kafka-console-consumer --topic written --partition 0 --offset 7 --max-messages 3"
        f" {_PRINT_ALL}",
        is_ordered=True,
    ),
    Run("kafka-console-consumer --topic written --partition 0 --offset earliest --max-messages 1"),
    Run("kafka-console-consumer --include writt.* --from-beginning --max-messages 10"),
    Run("kafka-console-consumer --topic written --timeout-ms 1000"),
    change(
        "kafka-console-producer --topic written --sync --request-required-acks 1", stdin="a\nb\n"
    ),
    change("kafka-console-producer --topic written --compression-codec zstd", stdin="c\nd\n"),
    change(
        "kafka-console-producer --topic written --reader-property parse.headers=true",
        stdin="h1:v1,h2:v2\tvalue\n",
    ),
    Run(
        "kafka-console-consumer --topic written --partition 0 --offset 10 --max-messages 5"
        f" {_PRINT_ALL}",
        is_ordered=True,
    ),
    *(
        Run(f"kafka-get-offsets --topic written --time {time}")
        for time in ("latest", "earliest", "max-timestamp", "earliest-local", "latest-tiered")
    ),
    Run("kafka-get-offsets --topic written --time earliest-pending-upload"),
    Run("kafka-get-offsets --topic written --time 1"),
    Run("kafka-get-offsets --topic written --time 99999999999999"),
    Run("kafka-get-offsets --topic written --partitions 0,7"),
    Run("kafka-get-offsets --topic-partitions written:0,read:0-"),
    Run("kafka-get-offsets --topic nowhere"),
    Run("kafka-get-offsets --exclude-internal-topics --topic w.*"),
    change(
        "kafka-delete-records --offset-json-file {offsets}",
        files={
            "offsets": '{"partitions":[{"topic":"written","partition":0,"offset":4}],"version":1}'
        },
    ),
    change(
        "kafka-delete-records --offset-json-file {offsets}",
        files={
            "offsets": '{"partitions":[{"topic":"written","partition":0,"offset":99}],"version":1}'
        },
    ),
    Run("kafka-get-offsets --topic written --time earliest"),
    Run(
        "kafka-console-consumer --topic written --from-beginning --max-messages 11", is_ordered=True
    ),
)

LOG_FILES: Sequence[Step] = (
    Run("kafka-log-dirs --describe --topic-list read,nowhere", masks=(NUMBERS,)),
    Run("kafka-log-dirs --describe --broker-list 1 --topic-list read", masks=(NUMBERS,)),
    Run("kafka-log-dirs --describe --broker-list 9"),
    *(
        Run(f"kafka-dump-log {options} --files {{data}}/read-0/00000000000000000000.{kind}")
        for kind, options in (
            ("log", ""),
            ("log", "--print-data-log"),
            ("log", "--deep-iteration --skip-record-metadata"),
            ("index", ""),
            ("index", "--index-sanity-check"),
            ("timeindex", ""),
        )
    ),
)

INTERNAL_TOPICS: Sequence[Step] = (
    # Kafka's storage is formatted with this default, which every description of a topic shows.
    change("kafka-configs --alter --broker-defaults --add-config min.insync.replicas=1"),
    Run(
        "kafka-console-consumer --topic __consumer_offsets --from-beginning --timeout-ms 2000"
        " --formatter org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
    ),
    Run(
        "kafka-console-consumer --topic __consumer_offsets --from-beginning --timeout-ms 2000"
        " --formatter org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter",
    ),
    Run(
        "kafka-console-consumer --topic __transaction_state --from-beginning --timeout-ms 2000"
        " --formatter org.apache.kafka.tools.consumer.TransactionLogMessageFormatter",
    ),
    Run("kafka-topics --describe --topic __consumer_offsets"),
    Run("kafka-topics --describe --topic __transaction_state"),
)

PLACEMENT: Sequence[Step] = (
    change("kafka-topics --create --topic moved --partitions 2"),
    Run("kafka-reassign-partitions --list"),
    Run(
        "kafka-reassign-partitions --generate --topics-to-move-json-file {topics} --broker-list 1",
        files={"topics": _MOVE},
    ),
    change(
        "kafka-reassign-partitions --execute --reassignment-json-file {plan}",
        files={"plan": _PLAN},
    ),
    Run(
        "kafka-reassign-partitions --verify --reassignment-json-file {plan}", files={"plan": _PLAN}
    ),
    change(
        "kafka-reassign-partitions --cancel --reassignment-json-file {plan}",
        files={"plan": _PLAN},
    ),
    change(
        "kafka-reassign-partitions --execute --throttle 1000 --reassignment-json-file {plan}",
        files={"plan": _PLAN},
    ),
    Run("kafka-configs --describe --topic moved"),
    Run("kafka-configs --describe --broker 1"),
    Run(
        "kafka-reassign-partitions --verify --reassignment-json-file {plan}", files={"plan": _PLAN}
    ),
    Run("kafka-configs --describe --topic moved"),
    Run("kafka-configs --describe --broker 1"),
    change(
        "kafka-reassign-partitions --execute --reassignment-json-file {plan}",
        files={"plan": _BAD_PLAN},
    ),
    change("kafka-leader-election --election-type PREFERRED --topic moved --partition 0"),
    change("kafka-leader-election --election-type UNCLEAN --topic moved --partition 0"),
    change("kafka-leader-election --election-type PREFERRED --topic moved --partition 7"),
    change("kafka-leader-election --election-type PREFERRED --topic nowhere --partition 0"),
    change("kafka-leader-election --election-type PREFERRED --all-topic-partitions"),
    change(
        "kafka-leader-election --election-type PREFERRED --path-to-json-file {partitions}",
        files={"partitions": '{"partitions":[{"topic":"moved","partition":1}]}'},
    ),
)

CLUSTER: Sequence[Step] = (
    Run("kafka-cluster cluster-id"),
    Run("kafka-cluster list-endpoints"),
    Run("kafka-cluster list-endpoints --include-fenced-brokers"),
    change("kafka-cluster unregister --id 9"),
    Run("kafka-features describe"),
    Run("kafka-features version-mapping"),
    Run("kafka-features feature-dependencies --feature transaction.version=2"),
    change("kafka-features upgrade --feature transaction.version=2 --dry-run"),
    change("kafka-features upgrade --feature group.version=9 --dry-run"),
    change("kafka-features upgrade --release-version 4.3 --dry-run"),
    change("kafka-features downgrade --feature transaction.version=1 --dry-run"),
    change("kafka-features disable --feature share.version --dry-run"),
    Run("kafka-metadata-quorum describe --status", masks=(NUMBERS,)),
    Run("kafka-metadata-quorum describe --replication", masks=_REPLICA),
    Run("kafka-metadata-quorum describe --replication --human-readable", masks=_REPLICA),
    change(
        "kafka-metadata-quorum remove-controller --controller-id 9"
        " --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ"
    ),
    Run("kafka-broker-api-versions"),
)

ACCESS: Sequence[Step] = (
    Run("kafka-acls --list"),
    Run("kafka-acls --list --topic read --principal User:anna"),
    change("kafka-acls --add --allow-principal User:anna --operation Read --topic read"),
    change("kafka-acls --add --allow-principal User:anna --producer --topic read"),
    change("kafka-acls --remove --force --allow-principal User:anna --operation Read --topic read"),
    change(
        "kafka-delegation-tokens --create --max-life-time-period 1000 --command-config {none}",
        files={"none": ""},
    ),
    Run("kafka-delegation-tokens --describe --command-config {none}", files={"none": ""}),
    change(
        "kafka-delegation-tokens --renew --renew-time-period 1000 --hmac aGVsbG8="
        " --command-config {none}",
        files={"none": ""},
    ),
    change(
        "kafka-delegation-tokens --expire --expiry-time-period -1 --hmac aGVsbG8="
        " --command-config {none}",
        files={"none": ""},
    ),
)

PERFORMANCE: Sequence[Step] = (
    change("kafka-topics --create --topic fast --partitions 1"),
    change(
        "kafka-producer-perf-test --topic fast --num-records 100 --throughput -1 --record-size 10",
        masks=(FIGURES, NUMBERS),
    ),
    change(
        "kafka-consumer-perf-test --topic fast --num-records 100 --group fast",
        masks=(FIGURES, NUMBERS),
    ),
    change(
        "kafka-e2e-latency --topic fast --num-records 5 --producer-acks all --record-size 10",
        masks=(FIGURES, NUMBERS),
    ),
    change("kafka-verifiable-producer --topic fast --max-messages 3", masks=(FIGURES,)),
    change(
        "kafka-verifiable-consumer --topic fast --group-id faster --max-messages 100",
        masks=(EVENTS,),
        is_distinct=True,
    ),
    Start(
        "kafka-replica-verification --topics-include fast --report-interval-ms 100",
        until="process is started",
    ),
    Stop(masks=(NUMBERS,)),
)

#: In the order in which they run.
SCENARIOS: Mapping[str, Sequence[Step]] = {
    "topics": TOPICS,
    "configs": CONFIGS,
    "broker loggers": BROKER_LOGGERS,
    "quotas": QUOTAS,
    "group configs": GROUP_CONFIGS,
    "client metrics": CLIENT_METRICS,
    "consumer groups": CONSUMER_GROUPS,
    "live groups": LIVE_GROUPS,
    "groups": GROUPS,
    "share groups": SHARE_GROUPS,
    "streams groups": STREAMS_GROUPS,
    "transactions": TRANSACTIONS,
    "records": RECORDS,
    "log files": LOG_FILES,
    "internal topics": INTERNAL_TOPICS,
    "placement": PLACEMENT,
    "cluster": CLUSTER,
    "access": ACCESS,
    "performance": PERFORMANCE,
}

#: Tools that are left out, and why.
NOT_COMPARED: Mapping[str, str] = {
    "org.apache.kafka.tools.ClientCompatibilityTest": "tests clients: prints what we tell it",
    "org.apache.kafka.tools.ConnectPluginPath": "works on folders of plugins, without a broker",
    "org.apache.kafka.tools.JmxTool": "reads a JVM's metrics: Millstream has none",
    "org.apache.kafka.tools.LogCompactionTester": "takes minutes; prints only what it was told",
    "org.apache.kafka.tools.OAuthCompatibilityTool": "needs a server for OAuth, and no broker",
    "org.apache.kafka.tools.ShareConsumerPerformance": "waits for a share group for ever",
    "org.apache.kafka.tools.TransactionalMessageCopier": "a part of Kafka's system tests",
    "org.apache.kafka.tools.VerifiableShareConsumer": "waits for a share group for ever",
}
