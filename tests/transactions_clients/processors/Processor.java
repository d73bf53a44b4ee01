import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Read-process-write with the Java client, as a program under `transactions_clients.processor`.
 * Arguments: bootstrap, transactional id, group, input topic, output topic, attempt. The broker's finalized
 * transaction.version decides which transaction protocol the client uses.
 */
public class Processor {
    private static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));

    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final String source;
    private final String target;
    private final String attempt;

    private Processor(String[] arguments) {
        Properties common = new Properties();
        common.put("bootstrap.servers", arguments[0]);
        common.put("reconnect.backoff.ms", "10");
        common.put("reconnect.backoff.max.ms", "100");
        Properties sending = new Properties();
        sending.putAll(common);
        sending.put("transactional.id", arguments[1]);
        producer = new KafkaProducer<>(sending, new StringSerializer(), new StringSerializer());
        Properties reading = new Properties();
        reading.putAll(common);
        reading.put("group.id", arguments[2]);
        reading.put("group.instance.id", arguments[1]);
        reading.put("isolation.level", "read_committed");
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("fetch.max.wait.ms", "50");
        reading.put("max.poll.records", "200");
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        source = arguments[3];
        target = arguments[4];
        attempt = arguments[5];
    }

    public static void main(String[] arguments) throws Exception {
        try {
            new Processor(arguments).run();
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private void run() throws Exception {
        producer.initTransactions();
        consumer.subscribe(List.of(source));
        for (int number = 0; ; number++) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            while (records.isEmpty()) {
                records = consumer.poll(Duration.ofMillis(100));
            }
            transact(records, number);
        }
    }

    private void transact(ConsumerRecords<String, String> records, int number) throws Exception {
        producer.beginTransaction();
        reach("polled", number, records.count());
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            String key = attempt + "." + number;
            producer.send(new ProducerRecord<>(target, record.partition(), key, record.value()));
            ends.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
        }
        producer.flush();
        reach("sent", number, records.count());
        producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
        reach("ready", number, records.count());
        producer.commitTransaction();
        reach("ended", number, records.count());
    }

    /** Reports the point, and waits for the line that lets the processor continue. */
    private static void reach(String point, int number, int count) throws Exception {
        System.out.println(point + " " + number + " " + count);
        System.out.flush();
        if (ANSWERS.readLine() == null) {
            throw new IllegalStateException("standard input was closed");
        }
    }
}
