import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;

/**
 * Kafka's own Java clients, unchanged, against a broker: `java JavaClients.java HOST:PORT`.
 *
 * Prints one fact a line, for a test to compare. Two consumers share a group, leave it, and a third goes on from what
 * they committed.
 */
public class JavaClients {
    private static final String TOPIC = "java-orders";
    private static final int PARTITIONS = 4;
    private static final int RECORDS = 100;
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long DEADLINE_NANOS = System.nanoTime() + Duration.ofSeconds(60).toNanos();

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(TOPIC, PARTITIONS, (short) 1))).all().get();
        }
        produce(bootstrap, 0, RECORDS);

        TreeSet<Integer> seen = new TreeSet<>();
        try (KafkaConsumer<Integer, Integer> first = consumer(bootstrap);
                KafkaConsumer<Integer, Integer> second = consumer(bootstrap)) {
            List<KafkaConsumer<Integer, Integer>> both = List.of(first, second);
            while (first.assignment().size() != PARTITIONS / 2 || second.assignment().size() != PARTITIONS / 2) {
                poll(both, seen);
            }
            while (position(first) + position(second) < RECORDS) {
                poll(both, seen);
            }
            first.commitSync();
            second.commitSync();
            System.out.println("shared=" + first.assignment().size() + "+" + second.assignment().size());
            System.out.println("consumed=" + seen.size());
            System.out.println("rebalanced=" + (first.groupMetadata().generationId() > 1));
        }

        produce(bootstrap, RECORDS, RECORDS + 10);
        TreeSet<Integer> rest = new TreeSet<>();
        try (KafkaConsumer<Integer, Integer> third = consumer(bootstrap)) {
            while (rest.size() < 10) {
                poll(List.of(third), rest);
            }
            third.commitSync();
            System.out.println("resumed=" + rest.first() + ".." + rest.last());
            var committed = third.committed(third.assignment()).values();
            System.out.println("committed=" + committed.stream().mapToLong(OffsetAndMetadata::offset).sum());
        }
    }

    private static void produce(String bootstrap, int from, int to) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "linger.ms", 5);
        try (var producer = new KafkaProducer<>(config, new IntegerSerializer(), new IntegerSerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (int number = from; number < to; number++) {
                sent.add(producer.send(new ProducerRecord<>(TOPIC, number % PARTITIONS, number, number)));
            }
            for (var one : sent) {
                one.get();
            }
        }
    }

    private static KafkaConsumer<Integer, Integer> consumer(String bootstrap) {
        Map<String, Object> config = new TreeMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", "java-group");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("heartbeat.interval.ms", "200");
        config.put("session.timeout.ms", "10000");
        config.put("group.protocol", "classic");
        var consumer = new KafkaConsumer<>(config, new IntegerDeserializer(), new IntegerDeserializer());
        consumer.subscribe(List.of(TOPIC));
        return consumer;
    }

    /** Sum of the positions in the partitions assigned to a consumer. */
    private static long position(KafkaConsumer<Integer, Integer> consumer) {
        return consumer.assignment().stream().mapToLong(consumer::position).sum();
    }

    private static void poll(List<KafkaConsumer<Integer, Integer>> consumers, TreeSet<Integer> values) {
        if (System.nanoTime() > DEADLINE_NANOS) {
            throw new IllegalStateException("too slow: " + values.size() + " values so far");
        }
        for (var consumer : consumers) {
            for (var record : consumer.poll(POLL)) {
                values.add(record.value());
            }
        }
    }
}
