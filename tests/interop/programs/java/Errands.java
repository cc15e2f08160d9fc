import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Short lives of clients in one JVM: see tests/interop/security/errands.py. SETTINGS is a file of properties, as
 * Kafka's tools take it.
 */
public final class Errands {
    private static final Duration SOON = Duration.ofSeconds(20);
    private static final Duration POLL = Duration.ofMillis(100);
    private static final String ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls";

    private Errands() {}

    public static void main(String[] args) throws Exception {
        var errands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String errand = errands.readLine(); errand != null; errand = errands.readLine()) {
            try {
                Lines.print("value", run(errand.split("\t")));
            } catch (ExecutionException failed) {
                printFailure(failed.getCause());
            } catch (Exception failed) {
                printFailure(failed);
            }
        }
    }

    /** Where a client cannot even be made, the cause says why. */
    private static void printFailure(Throwable error) {
        Throwable failed = error;
        while (failed.getClass() == KafkaException.class && failed.getCause() != null) {
            failed = failed.getCause();
        }
        Lines.print("error", failed.getClass().getSimpleName(), "message", failed.getMessage());
    }

    private static String run(String[] errand) throws Exception {
        var settings = new Properties();
        try (var file = Files.newBufferedReader(Path.of(errand[3]))) {
            settings.load(file);
        }
        if (settings.getProperty("sasl.oauthbearer.token.endpoint.url") != null) {
            System.setProperty(ALLOWED_URLS, settings.getProperty("sasl.oauthbearer.token.endpoint.url"));
        }
        return errand[0].equals("produce")
                ? produce(settings, errand[1], errand[2])
                : consume(settings, errand[1], errand[2]);
    }

    private static String produce(Properties settings, String topic, String value) throws Exception {
        settings.put("max.block.ms", String.valueOf(SOON.toMillis()));
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, value)).get();
        }
        return value;
    }

    private static String consume(Properties settings, String topic, String group) {
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        long deadlineNanos = System.nanoTime() + SOON.toNanos();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (System.nanoTime() < deadlineNanos) {
                for (var record : consumer.poll(POLL)) {
                    var partition = new TopicPartition(record.topic(), record.partition());
                    consumer.commitSync(Map.of(partition, new OffsetAndMetadata(record.offset() + 1)));
                    return record.value();
                }
            }
        }
        throw new IllegalStateException("no record within " + SOON);
    }
}
