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
 * Arguments: bootstrap, topic, mode (plain, idempotent, transactional), records, the indexes of the
 * bad ones (comma-separated), what is bad about them (key, future, past), codec, records sent
 * before (good, acknowledged one by one before the others are sent).
 *
 * Each record is "value-NNNNNN" plus padding, three fill a batch, and the producer has its default
 * of five requests in flight. Lines: "index class message" or "index offset N". A transaction ends
 * with "committed", or with "aborted" and the class of the exception; a second transaction of two
 * good records follows it.
 */
public final class RecordErrors {
    private static final int PADDING = 250;
    private static final int PER_BATCH = 3;

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        String mode = args[2];
        int count = Integer.parseInt(args[3]);
        Set<Integer> bad = Arrays.stream(args[4].split(",")).filter(each -> !each.isEmpty())
            .map(Integer::valueOf).collect(Collectors.toSet());
        String flaw = args[5];
        int before = Integer.parseInt(args[7]);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings(args[0], mode, args[6]))) {
            if (mode.equals("transactional")) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            for (int index = 0; index < before; index++) {
                producer.send(record(topic, -1 - index, false, flaw)).get();
            }
            Future<?>[] sent = new Future<?>[count];
            for (int index = 0; index < count; index++) {
                try {
                    sent[index] = producer.send(record(topic, index, bad.contains(index), flaw));
                } catch (KafkaException error) {
                    print(index, error);
                }
            }
            producer.flush();
            for (int index = 0; index < count; index++) {
                if (sent[index] != null) {
                    report(index, sent[index]);
                }
            }
            if (mode.equals("transactional")) {
                end(producer);
                producer.beginTransaction();
            }
            Future<RecordMetadata> first = producer.send(record(topic, count, false, flaw));
            Future<RecordMetadata> second = producer.send(record(topic, count + 1, false, flaw));
            producer.flush();
            report(count, first);
            report(count + 1, second);
            if (mode.equals("transactional")) {
                end(producer);
            }
        }
    }

    private static Properties settings(String bootstrap, String mode, String codec) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("batch.size", String.valueOf(61 + PER_BATCH * (PADDING + 45)));
        settings.put("linger.ms", "200");
        settings.put("compression.type", codec);
        settings.put("enable.idempotence", String.valueOf(!mode.equals("plain")));
        if (mode.equals("transactional")) {
            settings.put("transactional.id", "record-errors");
        }
        return settings;
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int index, boolean isBad, String flaw) {
        byte[] key = isBad && flaw.equals("key") ? null : ("key-" + index).getBytes(StandardCharsets.UTF_8);
        long time = System.currentTimeMillis();
        if (isBad && flaw.equals("future")) {
            time += 7_200_000;
        } else if (isBad && flaw.equals("past")) {
            time -= 7_200_000;
        }
        StringBuilder value = new StringBuilder(String.format("value-%06d ", index));
        // Not the same in each record: a codec must not fit more of them in a batch.
        java.util.Random random = new java.util.Random(index);
        while (value.length() < PADDING) {
            value.append((char) ('!' + random.nextInt(90)));
        }
        byte[] bytes = value.toString().getBytes(StandardCharsets.UTF_8);
        return new ProducerRecord<>(topic, 0, time, key, bytes);
    }

    private static void report(int index, Future<?> sent) throws InterruptedException {
        try {
            System.out.println(index + " offset " + ((RecordMetadata) sent.get()).offset());
        } catch (ExecutionException error) {
            print(index, error.getCause());
        }
    }

    private static void print(int index, Throwable error) {
        System.out.println(index + " " + error.getClass().getSimpleName() + " " + error.getMessage());
    }

    private static void end(KafkaProducer<byte[], byte[]> producer) {
        try {
            producer.commitTransaction();
            System.out.println("committed");
        } catch (KafkaException error) {
            producer.abortTransaction();
            System.out.println("aborted " + error.getClass().getSimpleName());
        }
    }
}
