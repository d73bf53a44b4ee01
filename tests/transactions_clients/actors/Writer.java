import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The writer of `transactions_clients.actor` with the Java client, which uses transaction version 2 if the
 * broker does. Arguments: bootstrap, name, history file, seed, transactional id, transaction timeout in
 * milliseconds, and the partitions as topic-number. Events are written as `harness.history` reads them.
 */
public class Writer {
    private static final int SENDS_MAX = 60;
    private static final double FLUSH_SHARE = 0.01;
    private static final int COMMIT_ATTEMPTS_MAX = 10;
    private static final double ABORT_SHARE = 0.2;
    private static final double ZOMBIE_SHARE = 0.05;

    private record Send(String partition, String value) {
        String json(Long offset) {
            return String.format(
                    "{\"step\":\"send\",\"partition\":\"%s\",\"value\":\"%s\",\"offset\":%d}", partition, value, offset);
        }

        ProducerRecord<String, String> record() {
            int dash = partition.lastIndexOf('-');
            int number = Integer.parseInt(partition.substring(dash + 1));
            return new ProducerRecord<>(partition.substring(0, dash), number, null, value);
        }
    }

    private final Properties settings = new Properties();
    private final String name;
    private final OutputStream history;
    private final Random chance;
    private final List<String> partitions;
    private KafkaProducer<String, String> producer;
    private int operations = -1;
    private int values;

    private Writer(String[] arguments) throws Exception {
        settings.put("bootstrap.servers", arguments[0]);
        name = arguments[1];
        history = new FileOutputStream(arguments[2], true);
        chance = new Random(Long.parseLong(arguments[3]));
        settings.put("transactional.id", arguments[4]);
        settings.put("transaction.timeout.ms", arguments[5]);
        settings.put("max.block.ms", "5000");
        settings.put("request.timeout.ms", "5000");
        settings.put("delivery.timeout.ms", "10000");
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "100");
        partitions = List.of(arguments).subList(6, arguments.length);
        producer = open();
    }

    public static void main(String[] arguments) throws Exception {
        Writer writer = new Writer(arguments);
        while (true) {
            writer.transact();
        }
    }

    private KafkaProducer<String, String> open() {
        while (true) {
            var opened = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
            try {
                opened.initTransactions();
                return opened;
            } catch (KafkaException error) {
                opened.close(Duration.ZERO);
            }
        }
    }

    private void reopen() {
        producer.close(Duration.ZERO);
        producer = open();
    }

    private void transact() throws Exception {
        List<Send> sends = new ArrayList<>();
        int count = 1 + chance.nextInt(SENDS_MAX);
        for (int number = 0; number < count; number++) {
            sends.add(new Send(partitions.get(chance.nextInt(partitions.size())), name + ":" + values++));
        }
        operations++;
        Map<String, Long> offsets = new ConcurrentHashMap<>();
        write("invoke", sends, offsets);
        write(attempt(sends, offsets), sends, offsets);
    }

    private String attempt(List<Send> sends, Map<String, Long> offsets) {
        try {
            producer.beginTransaction();
            for (Send send : sends) {
                producer.send(send.record(), (metadata, error) -> {
                    if (error == null && metadata.hasOffset()) {
                        offsets.put(send.value(), metadata.offset());
                    }
                });
                if (chance.nextDouble() < FLUSH_SHARE) {
                    producer.flush();
                }
            }
        } catch (KafkaException error) {
            // No commit was requested.
            System.err.println(error);
            reopen();
            return "fail";
        }
        double drawn = chance.nextDouble();
        if (drawn < ABORT_SHARE) {
            abort();
            return "fail";
        }
        if (drawn < ABORT_SHARE + ZOMBIE_SHARE) {
            return commitAsZombie();
        }
        String outcome = commit(producer);
        if (!outcome.equals("ok")) {
            reopen();
        }
        return outcome;
    }

    private void abort() {
        try {
            producer.abortTransaction();
        } catch (KafkaException error) {
            reopen();
        }
    }

    /** Commits with a fenced producer: a new producer has aborted the transaction before. */
    private String commitAsZombie() {
        KafkaProducer<String, String> zombie = producer;
        producer = open();
        String outcome = commit(zombie);
        zombie.close(Duration.ZERO);
        return outcome.equals("info") ? "fail" : outcome;
    }

    private static String commit(KafkaProducer<String, String> committing) {
        for (int attempt = 0; attempt < COMMIT_ATTEMPTS_MAX; attempt++) {
            try {
                committing.commitTransaction();
                return "ok";
            } catch (TimeoutException error) {
                // After a timeout the only legal call is a retry of the commit.
                continue;
            } catch (KafkaException error) {
                System.err.println(error);
                return abortInstead(committing);
            }
        }
        return "info";
    }

    /** Aborts after a failed commit. If the abort succeeds, the transaction was not committed. */
    private static String abortInstead(KafkaProducer<String, String> aborting) {
        try {
            aborting.abortTransaction();
            return "fail";
        } catch (KafkaException error) {
            return "info";
        }
    }

    private void write(String type, List<Send> sends, Map<String, Long> offsets) throws Exception {
        String steps = sends.stream()
                .map(send -> send.json(offsets.get(send.value())))
                .collect(Collectors.joining(","));
        String line = String.format(
                "{\"process\":\"%s\",\"number\":%d,\"type\":\"%s\",\"time_ns\":%d,\"steps\":[%s]}%n",
                name, operations, type, System.nanoTime(), steps);
        history.write(line.getBytes(StandardCharsets.UTF_8));
    }
}
