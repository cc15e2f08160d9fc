import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Keyed records with one codec: `java Produce BOOTSTRAP TOPIC CODEC FIRST COUNT`. Ends when all are acknowledged. */
public final class Produce {
    private Produce() {}

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String topic = args[1];
        String codec = args[2];
        int first = Integer.parseInt(args[3]);
        int count = Integer.parseInt(args[4]);
        Map<String, Object> config =
                Map.of("bootstrap.servers", bootstrap, "compression.type", codec, "linger.ms", 5);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (int number = first; number < first + count; number++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "k" + number, codec + "-" + number)));
            }
            for (var one : sent) {
                one.get();
            }
        }
    }
}
