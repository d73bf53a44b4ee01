import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client and its Admin behind JSON lines: a request {"op": ..., ...} a line on standard input, an
 * answer {"result": ...} or {"error": ...} a line on standard output. Bytes are base64. Ends with its input.
 */
public class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long WAIT_SECONDS_MAX = 30;

    private final String bootstrap;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private KafkaConsumer<byte[], byte[]> consumer;
    private Admin admin;

    private Driver(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Driver driver = new Driver(arguments[0]);
        BufferedReader requests =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 20);
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("result", driver.answer(JSON.readTree(line)));
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                answer.put("error", cause.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
        driver.close();
    }

    private Object answer(JsonNode request) throws Exception {
        return switch (request.get("op").asText()) {
            case "produce" -> produce(request);
            case "consume" -> consume(request);
            case "create_topic" -> createTopic(request);
            case "list_topics" -> admin().listTopics().names().get(WAIT_SECONDS_MAX, TimeUnit.SECONDS);
            case "describe_topic" -> describeTopic(topic(request));
            case "delete_topic" -> done(admin().deleteTopics(List.of(topic(request))).all());
            case "create_partitions" -> done(admin().createPartitions(
                    Map.of(topic(request), NewPartitions.increaseTo(request.get("total").asInt()))).all());
            case "describe_config" -> describeConfig(topic(request));
            case "alter_config" -> alterConfig(request);
            case "delete_records" -> deleteRecords(request);
            case "describe_cluster" -> describeCluster();
            case "describe_log_dirs" -> describeLogDirs(topic(request));
            case "list_offset" -> listOffset(request);
            case "describe_producers" -> describeProducers(request);
            default -> throw new IllegalArgumentException("unknown operation " + request);
        };
    }

    private List<Long> produce(JsonNode request) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer(request);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : request.get("records")) {
            JsonNode timestamp = record.get("timestamp");
            ProducerRecord<byte[], byte[]> message = new ProducerRecord<>(
                    topic(request),
                    request.get("partition").asInt(),
                    timestamp.isNull() ? null : timestamp.asLong(),
                    bytes(record.get("key")),
                    bytes(record.get("value")));
            for (JsonNode header : record.get("headers")) {
                message.headers().add(header.get(0).asText(), bytes(header.get(1)));
            }
            sent.add(producer.send(message));
        }
        producer.flush();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(wait(one).offset());
        }
        return offsets;
    }

    private KafkaProducer<byte[], byte[]> producer(JsonNode request) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", request.get("codec").asText());
        settings.put("acks", request.get("acks").asText());
        if (!request.get("idempotent").isNull()) {
            settings.put("enable.idempotence", request.get("idempotent").asText());
        }
        settings.put("max.request.size", 8 << 20);
        return producers.computeIfAbsent(settings.toString(), unused ->
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer()));
    }

    private List<Map<String, Object>> consume(JsonNode request) {
        TopicPartition partition = partition(request);
        long offset;
        if (request.has("time")) {
            offset = consumer().offsetsForTimes(Map.of(partition, request.get("time").asLong()))
                    .get(partition).offset();
        } else {
            offset = request.get("offset").asLong();
        }
        consumer().assign(List.of(partition));
        consumer().seek(partition, offset);
        int count = request.get("count").asInt();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS_MAX);
        List<Map<String, Object>> found = new ArrayList<>();
        while (found.size() < count && System.nanoTime() < deadline) {
            for (ConsumerRecord<byte[], byte[]> record : consumer().poll(Duration.ofSeconds(1))) {
                if (found.size() < count) {
                    found.add(fields(record));
                }
            }
        }
        return found;
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        if (consumer == null) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "none");
            settings.put("fetch.max.wait.ms", "50");
            consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }
        return consumer;
    }

    private static Map<String, Object> fields(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<String> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        Map<String, Object> fields = new HashMap<>();
        fields.put("key", text(record.key()));
        fields.put("value", text(record.value()));
        fields.put("headers", headers);
        fields.put("timestamp", record.timestamp());
        fields.put("offset", record.offset());
        return fields;
    }

    private Object createTopic(JsonNode request) throws Exception {
        NewTopic topic = new NewTopic(
                topic(request), request.get("partitions").asInt(), (short) request.get("replicas").asInt());
        return done(admin().createTopics(List.of(topic.configs(strings(request.get("configs"))))).all());
    }

    private List<Map<String, Object>> describeTopic(String topic) throws Exception {
        List<Map<String, Object>> partitions = new ArrayList<>();
        for (TopicPartitionInfo info :
                wait(admin().describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions()) {
            partitions.add(Map.of(
                    "partition", info.partition(),
                    "leader", info.leader().id(),
                    "replicas", info.replicas().stream().map(Node::id).toList(),
                    "isr", info.isr().stream().map(Node::id).toList()));
        }
        return partitions;
    }

    private Map<String, String> describeConfig(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, String> found = new HashMap<>();
        wait(admin().describeConfigs(List.of(resource)).all()).get(resource).entries()
                .forEach(entry -> found.put(entry.name(), entry.value()));
        return found;
    }

    private Object alterConfig(JsonNode request) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic(request));
        List<AlterConfigOp> changes = new ArrayList<>();
        strings(request.get("configs")).forEach((name, value) ->
                changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        return done(admin().incrementalAlterConfigs(Map.of(resource, changes)).all());
    }

    private long deleteRecords(JsonNode request) throws Exception {
        RecordsToDelete before = RecordsToDelete.beforeOffset(request.get("before").asLong());
        TopicPartition partition = partition(request);
        return wait(admin().deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition))
                .lowWatermark();
    }

    private Map<String, Object> describeCluster() throws Exception {
        var found = admin().describeCluster();
        List<List<Object>> brokers = new ArrayList<>();
        for (Node node : wait(found.nodes())) {
            brokers.add(List.of(node.id(), node.host(), node.port()));
        }
        return Map.of(
                "cluster_id", wait(found.clusterId()),
                "controller", wait(found.controller()).id(),
                "brokers", brokers);
    }

    private Map<Integer, List<Long>> describeLogDirs(String topic) throws Exception {
        List<Integer> brokers = wait(admin().describeCluster().nodes()).stream().map(Node::id).toList();
        Map<Integer, List<Long>> sizes = new LinkedHashMap<>();
        for (Map<String, LogDirDescription> folders :
                wait(admin().describeLogDirs(brokers).allDescriptions()).values()) {
            for (LogDirDescription folder : folders.values()) {
                folder.replicaInfos().forEach((partition, info) -> {
                    if (partition.topic().equals(topic)) {
                        sizes.computeIfAbsent(partition.partition(), unused -> new ArrayList<>())
                                .add(info.size());
                    }
                });
            }
        }
        return sizes;
    }

    private long listOffset(JsonNode request) throws Exception {
        JsonNode at = request.get("at");
        OffsetSpec spec = at.isNumber()
                ? OffsetSpec.forTimestamp(at.asLong())
                : switch (at.asText()) {
                    case "earliest" -> OffsetSpec.earliest();
                    case "latest" -> OffsetSpec.latest();
                    case "max_timestamp" -> OffsetSpec.maxTimestamp();
                    default -> throw new IllegalArgumentException("unknown position " + at);
                };
        TopicPartition partition = partition(request);
        return wait(admin().listOffsets(Map.of(partition, spec)).all()).get(partition).offset();
    }

    private List<Map<String, Object>> describeProducers(JsonNode request) throws Exception {
        TopicPartition partition = partition(request);
        List<Map<String, Object>> found = new ArrayList<>();
        for (ProducerState state : wait(admin().describeProducers(List.of(partition)).all())
                .get(partition).activeProducers()) {
            found.add(Map.of(
                    "last_sequence", state.lastSequence(), "producer_epoch", state.producerEpoch()));
        }
        return found;
    }

    private Admin admin() {
        if (admin == null) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            admin = Admin.create(settings);
        }
        return admin;
    }

    private void close() {
        producers.values().forEach(producer -> producer.close(Duration.ofSeconds(5)));
        if (consumer != null) {
            consumer.close();
        }
        if (admin != null) {
            admin.close(Duration.ofSeconds(5));
        }
    }

    private static <T> T wait(Future<T> future) throws Exception {
        return future.get(WAIT_SECONDS_MAX, TimeUnit.SECONDS);
    }

    private static Object done(Future<?> future) throws Exception {
        wait(future);
        return true;
    }

    private static String topic(JsonNode request) {
        return request.get("topic").asText();
    }

    private static TopicPartition partition(JsonNode request) {
        return new TopicPartition(topic(request), request.get("partition").asInt());
    }

    private static Map<String, String> strings(JsonNode object) {
        Map<String, String> map = new HashMap<>();
        object.fields().forEachRemaining(field -> map.put(field.getKey(), field.getValue().asText()));
        return map;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
