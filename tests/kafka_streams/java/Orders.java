import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * Joins orders with the table of users and counts the orders of each region in windows of time.
 *
 * Orders BOOTSTRAP STATE_FOLDER WINDOW_MS
 *
 *   orders  (user -> order), users (user -> region)
 *   joined  (user -> "order region"), one for each order of a known user
 *   counts  ("region start of window" -> number), one for each order: the count so far
 *
 * The count is keyed by region and the orders by user, so it goes through a repartition topic. No
 * cache holds counts back: every step of a count is written. Prints "tasks N" whenever the number of
 * its tasks changes, and "failed ..." when a thread dies, which ends it.
 */
public final class Orders {
    public static void main(String[] arguments) throws InterruptedException {
        KafkaStreams streams =
            new KafkaStreams(topology(Long.parseLong(arguments[2])).build(), settings(arguments));
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed " + error);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.NOT_RUNNING || now == KafkaStreams.State.ERROR) ended.countDown();
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        long told = -1;
        while (!ended.await(50, java.util.concurrent.TimeUnit.MILLISECONDS)) {
            long tasks = streams.state() != KafkaStreams.State.RUNNING ? 0
                : streams.metadataForLocalThreads().stream().mapToLong(each -> each.activeTasks().size()).sum();
            if (tasks != told) System.out.println("tasks " + tasks);
            told = tasks;
        }
    }

    private static StreamsBuilder topology(long windowMs) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> orders = builder.stream("orders");
        KTable<String, String> users = builder.table("users");
        KStream<String, String> joined = orders.join(users, (order, region) -> order + " " + region);
        joined.to("joined");
        joined.map((user, order) -> KeyValue.pair(order.substring(order.indexOf(' ') + 1), order))
            .groupByKey()
            // The grace lets in every order, in whatever order the repartition topic has them.
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(windowMs), Duration.ofDays(1)))
            .count()
            .toStream()
            .map((region, count) ->
                KeyValue.pair(region.key() + " " + region.window().start(), Long.toString(count)))
            .to("counts");
        return builder;
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "orders-application");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // An instance that is killed is missed soon, and so is what it left open.
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 3000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), 300);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 3000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return settings;
    }
}
