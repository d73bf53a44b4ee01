import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads all partitions of a topic from their beginning with the unmodified KafkaConsumer, by assignment: the
 * stand-in for ConsumerPerformance on brokers that have no consumer groups, with the settings that tool uses.
 * Arguments: bootstrap topic partitions records [property=value ...]. Prints one JSON line.
 */
public class AssignedConsumer {
    private static final long READ_NANOS_MAX = 120_000_000_000L;

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("receive.buffer.bytes", 2 * 1024 * 1024);
        settings.put("max.partition.fetch.bytes", 1024 * 1024);
        settings.put("check.crcs", "false");
        settings.put("enable.auto.commit", "false");
        for (int at = 4; at < arguments.length; at++) {
            int equals = arguments[at].indexOf('=');
            settings.put(arguments[at].substring(0, equals), arguments[at].substring(equals + 1));
        }
        List<TopicPartition> partitions = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            partitions.add(new TopicPartition(arguments[1], number));
        }
        long wanted = Long.parseLong(arguments[3]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            partitions.forEach(consumer::position);
            long records = 0;
            long bytes = 0;
            long begin = System.nanoTime();
            while (records < wanted && System.nanoTime() - begin < READ_NANOS_MAX) {
                ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<byte[], byte[]> record : found) {
                    records++;
                    bytes += record.value().length;
                }
            }
            double seconds = (System.nanoTime() - begin) / 1e9;
            System.out.printf("{\"records\": %d, \"bytes\": %d, \"seconds\": %.6f}%n", records, bytes, seconds);
        }
    }
}
