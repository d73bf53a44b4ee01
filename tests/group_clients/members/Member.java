import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.StaleMemberEpochException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A group member with the Java consumer, in either protocol. It gets its settings as a JSON argument and writes
 * the lines that history.py in the parent folder describes.
 */
public class Member implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int HOLD_POLL_MS = 10;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final FileOutputStream lines = new FileOutputStream(FileDescriptor.out);
    private final JsonNode orders;
    private final Path hold;
    private final KafkaConsumer<String, String> consumer;
    /** Processed and uncommitted offsets of the owned partitions. A rejected commit is retried. */
    private final Map<TopicPartition, OffsetAndMetadata> uncommitted = new HashMap<>();
    private volatile boolean stopping;

    private Member(JsonNode orders) {
        this.orders = orders;
        this.hold = Path.of(orders.get("hold").asText());
        this.consumer = new KafkaConsumer<>(settings(orders), new StringDeserializer(), new StringDeserializer());
    }

    private static Properties settings(JsonNode orders) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", orders.get("bootstrap").asText());
        settings.put("group.id", orders.get("group").asText());
        settings.put("group.protocol", orders.get("protocol").asText());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("metadata.max.age.ms", "500");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("max.poll.records", orders.get("records_max").asText());
        if (orders.get("protocol").asText().equals("classic")) {
            settings.put("session.timeout.ms", orders.get("session_ms").asText());
            settings.put("heartbeat.interval.ms", orders.get("heartbeat_ms").asText());
            if (!orders.get("assignor").isNull()) {
                settings.put("partition.assignment.strategy", orders.get("assignor").asText());
            }
        }
        if (!orders.get("instance_id").isNull()) {
            settings.put("group.instance.id", orders.get("instance_id").asText());
        }
        return settings;
    }

    public static void main(String[] arguments) throws Exception {
        // The client's log must not mix with the lines.
        System.setOut(System.err);
        Member member = new Member(JSON.readTree(arguments[0]));
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            member.stopping = true;
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        member.run();
    }

    private void run() throws Exception {
        try (consumer) {
            consumer.subscribe(List.of(orders.get("topic").asText()), this);
            while (!stopping) {
                for (ConsumerRecord<String, String> record : poll()) {
                    say("processed", Map.of(
                            "partition", record.partition(), "offset", record.offset(), "value", record.value()));
                    uncommitted.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                if (!uncommitted.isEmpty()) {
                    holdIfAsked();
                    commit();
                }
            }
        }
    }

    /**
     * Polls. A consumer whose session has expired may learn that from its OffsetFetch; the exception that poll()
     * then throws is not fatal: the consumer rejoins the group.
     */
    private ConsumerRecords<String, String> poll() {
        try {
            return consumer.poll(POLL);
        } catch (UnknownMemberIdException | StaleMemberEpochException error) {
            return ConsumerRecords.empty();
        }
    }

    private void holdIfAsked() throws InterruptedException {
        if (Files.exists(hold)) {
            say("holding", Map.of());
            while (Files.exists(hold)) {
                Thread.sleep(HOLD_POLL_MS);
            }
        }
    }

    private void commit() {
        Map<Integer, Long> offsets = new TreeMap<>();
        uncommitted.forEach((partition, next) -> offsets.put(partition.partition(), next.offset()));
        say("committing", Map.of("offsets", offsets));
        try {
            consumer.commitSync(uncommitted);
        } catch (KafkaException error) {
            say("refused", Map.of("reason", error.getClass().getSimpleName()));
            return;
        }
        say("committed", Map.of());
        uncommitted.clear();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        sayOf("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        uncommitted.keySet().removeAll(partitions);
        sayOf("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        uncommitted.keySet().removeAll(partitions);
        sayOf("lost", partitions);
    }

    private void sayOf(String event, Collection<TopicPartition> partitions) {
        if (!partitions.isEmpty()) {
            say(event, Map.of(
                    "partitions",
                    partitions.stream().map(TopicPartition::partition).sorted().collect(Collectors.toList())));
        }
    }

    /** Writes a line with one write, so that only the last line of a killed member may be incomplete. */
    private synchronized void say(String event, Map<String, Object> fields) {
        Map<String, Object> line = new TreeMap<>(fields);
        line.put("event", event);
        line.put("at", System.nanoTime());
        try {
            lines.write((JSON.writeValueAsString(line) + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
