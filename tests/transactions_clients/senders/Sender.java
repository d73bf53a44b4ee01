import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Pipelined transactions with the Java client, as `transactions_clients.sender` describes them. */
public class Sender {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", arguments[1]);
        String topic = arguments[2];
        int partitions = Integer.parseInt(arguments[3]);
        int transactions = Integer.parseInt(arguments[4]);
        int records = Integer.parseInt(arguments[5]);
        int abortEvery = Integer.parseInt(arguments[6]);
        String padding = "x".repeat(Integer.parseInt(arguments[7]));
        var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        for (int transaction = 0; transaction < transactions; transaction++) {
            producer.beginTransaction();
            List<Future<?>> sent = new ArrayList<>();
            for (int number = 0; number < records; number++) {
                String start = transaction + " " + number + " ";
                String value = start + padding.substring(start.length());
                sent.add(producer.send(new ProducerRecord<>(topic, number % partitions, null, value)));
            }
            if ((transaction + 1) % abortEvery == 0) {
                producer.abortTransaction();
                continue;
            }
            producer.commitTransaction();
            for (Future<?> one : sent) {
                one.get();
            }
        }
        producer.close();
    }
}
