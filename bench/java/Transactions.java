import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions of a fixed number of records, one after the other, with the unmodified KafkaProducer. What
 * load/transactions.py measures: commits once all records are acknowledged, and the rate of everything.
 * Arguments: bootstrap topic partitions records size seconds warm-up-seconds [property=value ...]. Prints one
 * JSON line.
 */
public class Transactions {
    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final int partitions;
    private final int records;
    private final byte[] payload;
    private List<Long> commitNanos = new ArrayList<>();

    private Transactions(String[] arguments) {
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        records = Integer.parseInt(arguments[3]);
        payload = new byte[Integer.parseInt(arguments[4])];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", "bench-java-" + topic);
        if (records == 1) {
            settings.put("linger.ms", "0");
        }
        for (int at = 7; at < arguments.length; at++) {
            int equals = arguments[at].indexOf('=');
            settings.put(arguments[at].substring(0, equals), arguments[at].substring(equals + 1));
        }
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    public static void main(String[] arguments) {
        Transactions loop = new Transactions(arguments);
        loop.producer.initTransactions();
        loop.run(Double.parseDouble(arguments[6]));
        long begin = System.nanoTime();
        long transactions = loop.run(Double.parseDouble(arguments[5]));
        double seconds = (System.nanoTime() - begin) / 1e9;
        Collections.sort(loop.commitNanos);
        System.out.printf(
                "{\"records\": %d, \"seconds\": %.6f, \"p50\": %.4f, \"p99\": %.4f, \"p99.9\": %.4f}%n",
                transactions * loop.records, seconds, loop.millis(0.5), loop.millis(0.99), loop.millis(0.999));
        loop.producer.close();
    }

    /** Transactions until the time is over; returns how many. Keeps how long commits took. */
    private long run(double seconds) {
        commitNanos = new ArrayList<>();
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < deadline) {
            producer.beginTransaction();
            for (int number = 0; number < records; number++) {
                producer.send(new ProducerRecord<>(topic, number % partitions, null, payload));
            }
            producer.flush();
            long begin = System.nanoTime();
            producer.commitTransaction();
            commitNanos.add(System.nanoTime() - begin);
        }
        return commitNanos.size();
    }

    private double millis(double fraction) {
        int index = Math.min(commitNanos.size() - 1, (int) (commitNanos.size() * fraction));
        return commitNanos.get(index) / 1e6;
    }
}
