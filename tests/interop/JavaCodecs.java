import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What the broker packs anew for a topic's compression.type, read by Kafka's own Java client:
 * `java JavaCodecs.java HOST:PORT CODEC...`.
 *
 * The records are sent uncompressed to a topic per codec, named like it, and read back. Prints `codec=records` when every
 * one came back as it was sent.
 */
public class JavaCodecs {
    private static final long DEADLINE_NANOS = System.nanoTime() + Duration.ofSeconds(60).toNanos();

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        List<String> codecs = List.of(args).subList(1, args.length);
        List<byte[]> values = values();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            List<NewTopic> topics = new ArrayList<>();
            for (String codec : codecs) {
                topics.add(new NewTopic(codec, 1, (short) 1).configs(Map.of("compression.type", codec)));
            }
            admin.createTopics(topics).all().get();
        }
        for (String codec : codecs) {
            produce(bootstrap, codec, values);
            consume(bootstrap, codec, values);
            System.out.println(codec + "=" + values.size());
        }
    }

    /** Small and large, and what packs well beside what does not pack at all: more than a block of every codec. */
    private static List<byte[]> values() {
        Random random = new Random(7);
        List<byte[]> values = new ArrayList<>();
        for (int number = 0; number < 2_000; number++) {
            values.add(("{\"order\": " + number + ", \"item\": \"" + random.nextInt(50) + "\"}").getBytes());
        }
        byte[] noise = new byte[200_000];
        random.nextBytes(noise);
        byte[] mixed = Arrays.copyOf(noise, 400_000);
        values.addAll(Arrays.asList(noise, new byte[400_000], mixed, new byte[0], null));
        return values;
    }

    private static void produce(String bootstrap, String topic, List<byte[]> values) throws Exception {
        Map<String, Object> config =
                Map.of("bootstrap.servers", bootstrap, "linger.ms", 20, "batch.size", 500_000, "compression.type", "none");
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (byte[] value : values) {
                sent.add(producer.send(new ProducerRecord<>(topic, 0, topic.getBytes(), value)));
            }
            for (var one : sent) {
                one.get();
            }
        }
    }

    private static void consume(String bootstrap, String topic, List<byte[]> values) {
        Map<String, Object> config =
                Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest", "check.crcs", "true");
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            int found = 0;
            while (found < values.size()) {
                if (System.nanoTime() > DEADLINE_NANOS) {
                    throw new IllegalStateException("too slow: " + found + " records of " + topic + " so far");
                }
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    if (record.offset() != found
                            || !Arrays.equals(record.key(), topic.getBytes())
                            || !Arrays.equals(record.value(), values.get(found))) {
                        throw new IllegalStateException("not what was sent: " + record);
                    }
                    found++;
                }
            }
        }
    }
}
