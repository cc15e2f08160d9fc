import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The scenario of tests/protocol/capture.py with Kafka's own clients: java GoldenScenario.java BOOTSTRAP TOPIC GROUP. */
public class GoldenScenario {
    private static final Duration SHORT = Duration.ofMillis(50);
    private static final long DEADLINE_MS = 60_000;

    private final String bootstrap;
    private final String topic;
    private final String group;

    GoldenScenario(String bootstrap, String topic, String group) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.group = group;
    }

    public static void main(String[] args) throws Exception {
        new GoldenScenario(args[0], args[1], args[2]).run();
    }

    private void run() throws Exception {
        try (Admin admin = Admin.create(common())) {
            NewTopic created = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "-1"));
            Uuid id = admin.createTopics(List.of(created)).topicId(topic).get();
            admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get();
            produce();
            TopicPartition partition = new TopicPartition(topic, 0);
            try (KafkaConsumer<byte[], byte[]> first = consumer(Map.of());
                    KafkaConsumer<byte[], byte[]> second = consumer(Map.of("group.instance.id", "static-1"))) {
                consume(admin, partition, first, second);
            }
            // A static member stays in the group when it closes; a request that names no member removes all of them.
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
            admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
            admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all().get();
            admin.describeCluster().clusterId().get();
            admin.describeTopics(List.of(topic)).allTopicNames().get();
            configs(admin);
            admin.describeLogDirs(List.of(1)).allDescriptions().get();
            admin.describeProducers(List.of(partition)).all().get();
            admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get();
            var replicas = Optional.of(new NewPartitionReassignment(List.of(1)));
            admin.alterPartitionReassignments(Map.of(partition, replicas)).all().get();
            admin.listPartitionReassignments(Set.of(partition)).reassignments().get();
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(1))).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
            admin.deleteConsumerGroups(List.of(group)).all().get();
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        }
    }

    private void configs(Admin admin) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        admin.describeConfigs(List.of(resource)).all().get();
        AlterConfigOp op = new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(op))).all().get();
        admin.listConfigResources().all().get();
    }

    private void produce() throws Exception {
        Properties configs = common();
        configs.put("key.serializer", ByteArraySerializer.class);
        configs.put("value.serializer", ByteArraySerializer.class);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(configs)) {
            for (int number = 0; number < 4; number++) {
                producer.send(new ProducerRecord<>(topic, number % 2, "k".getBytes(), ("v" + number).getBytes())).get();
            }
        }
    }

    private void consume(
            Admin admin,
            TopicPartition partition,
            KafkaConsumer<byte[], byte[]> first,
            KafkaConsumer<byte[], byte[]> second)
            throws Exception {
        first.subscribe(List.of(topic));
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (first.poll(SHORT).isEmpty() || first.assignment().size() < 2) {
            check(deadline);
        }
        first.commitSync();
        first.committed(Set.of(partition));
        first.offsetsForTimes(Map.of(partition, 1L));
        first.endOffsets(List.of(partition));
        // A position with a leader epoch is validated by OffsetForLeaderEpoch before it is fetched from.
        first.seek(partition, new OffsetAndMetadata(0, Optional.of(0), ""));
        while (first.poll(SHORT).isEmpty()) {
            check(deadline);
        }
        second.subscribe(List.of(topic));
        while (second.assignment().size() != 1) {
            check(deadline);
            first.poll(SHORT);
            second.poll(SHORT);
        }
        admin.listGroups().all().get();
        admin.describeClassicGroups(List.of(group)).all().get();
        admin.listConsumerGroupOffsets(Map.of(group, new ListConsumerGroupOffsetsSpec())).all().get();
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Properties configs = common();
        configs.put("key.deserializer", ByteArrayDeserializer.class);
        configs.put("value.deserializer", ByteArrayDeserializer.class);
        configs.put("group.id", group);
        configs.put("session.timeout.ms", 6000);
        configs.put("heartbeat.interval.ms", 100);
        configs.put("auto.offset.reset", "earliest");
        configs.put("enable.auto.commit", false);
        configs.putAll(more);
        return new KafkaConsumer<>(configs);
    }

    private Properties common() {
        Properties configs = new Properties();
        configs.put("bootstrap.servers", bootstrap);
        configs.put("client.id", "golden");
        return configs;
    }

    private static void check(long deadline) {
        if (System.currentTimeMillis() > deadline) {
            throw new IllegalStateException("not done in time");
        }
    }
}
