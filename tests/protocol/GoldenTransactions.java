import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions with the offsets of a consumer group (KIP-848), for tests/protocol/capture.py:
 * java GoldenTransactions.java BOOTSTRAP TOPIC GROUP.
 */
public class GoldenTransactions {
    private static final Duration SHORT = Duration.ofMillis(50);
    private static final String ID = "golden-id";

    private final String bootstrap;
    private final String topic;
    private final String group;

    GoldenTransactions(String bootstrap, String topic, String group) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.group = group;
    }

    public static void main(String[] args) throws Exception {
        new GoldenTransactions(args[0], args[1], args[2]).run();
    }

    private void run() throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(common());
                KafkaProducer<byte[], byte[]> producer = producer();
                KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
            producer.initTransactions();
            producer.beginTransaction();
            send(producer);
            producer.commitTransaction();
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + 60_000;
            while (consumer.poll(SHORT).isEmpty()) {
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException("not done in time");
                }
            }
            producer.beginTransaction();
            send(producer);
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1)), consumer.groupMetadata());
            admin.listTransactions().all().get();
            admin.describeTransactions(List.of(ID)).all().get();
            var open = admin.describeProducers(List.of(partition)).partitionResult(partition).get();
            producer.abortTransaction();
            // Its end is there already, so the leader refuses this one.
            var state = open.activeProducers().iterator().next();
            try {
                short epoch = (short) state.producerEpoch();
                admin.abortTransaction(new AbortTransactionSpec(partition, state.producerId(), epoch, 0)).all().get();
            } catch (java.util.concurrent.ExecutionException refused) {
                System.err.println("abortTransaction: " + refused.getCause());
            }
            admin.fenceProducers(Set.of(ID)).all().get();
        }
    }

    private void send(KafkaProducer<byte[], byte[]> producer) throws Exception {
        for (int number = 0; number < 2; number++) {
            producer.send(new ProducerRecord<>(topic, number, "k".getBytes(), ("v" + number).getBytes())).get();
        }
    }

    private KafkaProducer<byte[], byte[]> producer() {
        Properties configs = common();
        configs.put("key.serializer", ByteArraySerializer.class);
        configs.put("value.serializer", ByteArraySerializer.class);
        configs.put("transactional.id", ID);
        return new KafkaProducer<>(configs);
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        Properties configs = common();
        configs.put("key.deserializer", ByteArrayDeserializer.class);
        configs.put("value.deserializer", ByteArrayDeserializer.class);
        configs.put("group.id", group);
        configs.put("group.protocol", "consumer");
        configs.put("auto.offset.reset", "earliest");
        configs.put("isolation.level", "read_committed");
        configs.put("enable.auto.commit", false);
        return new KafkaConsumer<>(configs);
    }

    private Properties common() {
        Properties configs = new Properties();
        configs.put("bootstrap.servers", bootstrap);
        configs.put("client.id", "golden");
        return configs;
    }
}
