import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends records, some of them bad, and prints what the producer says of each.
 *
 * Arguments: bootstrap, topic, mode (plain, idempotent, transactional), records in a batch, records,
 * the indexes of the bad ones (comma-separated), what is bad about them (key, future), and how many
 * good records are acknowledged before the others are sent. Two good records follow the others; in
 * transactional mode they are a transaction of their own.
 *
 * All settings but the size of a batch are the producer's defaults, so five requests are in flight.
 * A line is "index class message", "index offset N", "committed", or "aborted class".
 */
public final class RecordErrors {
    private static final int VALUE_BYTES = 250;
    /** Of a record in the batch, and what the producer takes a record for at most. */
    private static final int RECORD_BYTES = VALUE_BYTES + 45;
    private static final int HEADER_BYTES = 61;
    private static final long TWO_HOURS_MS = 7_200_000;

    private final String topic;
    private final String mode;
    private final String flaw;
    private final KafkaProducer<byte[], byte[]> producer;

    private RecordErrors(String bootstrap, String topic, String mode, int perBatch, String flaw) {
        this.topic = topic;
        this.mode = mode;
        this.flaw = flaw;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("batch.size", String.valueOf(HEADER_BYTES + perBatch * RECORD_BYTES));
        // A batch leaves when it is full, or with a flush.
        settings.put("linger.ms", "20000");
        settings.put("enable.idempotence", String.valueOf(!mode.equals("plain")));
        if (mode.equals("transactional")) {
            settings.put("transactional.id", "writer-of-" + topic);
        }
        producer = new KafkaProducer<>(settings);
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[4]);
        Set<Integer> bad = Arrays.stream(args[5].split(",")).map(Integer::valueOf).collect(Collectors.toSet());
        RecordErrors program = new RecordErrors(args[0], args[1], args[2], Integer.parseInt(args[3]), args[6]);
        program.run(count, bad, Integer.parseInt(args[7]));
        program.producer.close();
    }

    private void run(int count, Set<Integer> bad, int before) throws Exception {
        if (isTransactional()) {
            producer.initTransactions();
            producer.beginTransaction();
        }
        for (int index = -before; index < 0; index++) {
            send(index, Set.of());
            producer.flush();
        }
        report(0, sendAll(0, count, bad));
        if (isTransactional()) {
            end();
            producer.beginTransaction();
        }
        report(count, sendAll(count, count + 2, Set.of()));
        if (isTransactional()) {
            end();
        }
    }

    private boolean isTransactional() {
        return mode.equals("transactional");
    }

    private Future<?>[] sendAll(int start, int end, Set<Integer> bad) {
        Future<?>[] sent = new Future<?>[end - start];
        for (int index = start; index < end; index++) {
            sent[index - start] = send(index, bad);
        }
        producer.flush();
        return sent;
    }

    /** Null where the producer takes no more: a transaction that has failed. */
    private Future<RecordMetadata> send(int index, Set<Integer> bad) {
        boolean isBad = bad.contains(index);
        byte[] key = isBad && flaw.equals("key") ? null : bytes("key-" + index);
        long time = System.currentTimeMillis() + (isBad && flaw.equals("future") ? TWO_HOURS_MS : 0);
        byte[] value = Arrays.copyOf(bytes("value-" + index + " "), VALUE_BYTES);
        try {
            return producer.send(new ProducerRecord<>(topic, 0, time, key, value));
        } catch (KafkaException error) {
            print(index, error);
            return null;
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void report(int start, Future<?>[] sent) throws InterruptedException {
        for (int index = start; index < start + sent.length; index++) {
            if (sent[index - start] == null) {
                continue;
            }
            try {
                RecordMetadata place = (RecordMetadata) sent[index - start].get();
                System.out.println(index + " offset " + place.offset());
            } catch (ExecutionException error) {
                print(index, error.getCause());
            }
        }
    }

    private static void print(int index, Throwable error) {
        System.out.println(index + " " + error.getClass().getSimpleName() + " " + error.getMessage());
    }

    private void end() {
        try {
            producer.commitTransaction();
            System.out.println("committed");
        } catch (KafkaException error) {
            producer.abortTransaction();
            System.out.println("aborted " + error.getClass().getSimpleName());
        }
    }
}
