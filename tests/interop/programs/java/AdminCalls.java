import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Every call of Kafka's Admin on topics, configs, records, groups and brokers: `java AdminCalls BOOTSTRAP PREFIX`. */
public final class AdminCalls {
    private static final long RECORDS = 20;

    private final String bootstrap;
    private final Admin admin;
    private final Attempts attempts = new Attempts();
    private final String topic;
    private final String group;
    private final TopicPartition first;
    private final ConfigResource topicConfig;

    private AdminCalls(String bootstrap, String prefix, Admin admin) {
        this.bootstrap = bootstrap;
        this.admin = admin;
        topic = prefix + "-topic";
        group = prefix + "-group";
        first = new TopicPartition(topic, 0);
        topicConfig = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    public static void main(String[] args) {
        Map<String, Object> config =
                Map.of("bootstrap.servers", args[0], "default.api.timeout.ms", 20_000, "request.timeout.ms", 10_000);
        try (Admin admin = Admin.create(config)) {
            var calls = new AdminCalls(args[0], args[1], admin);
            int broker = calls.cluster();
            calls.topics();
            calls.configs(broker);
            calls.records(broker);
            calls.groups();
            calls.deleteTopics();
            new BeyondCalls(admin, args[1], calls.attempts).all();
        }
    }

    /** The id of one broker. */
    private int cluster() {
        var brokers = attempts.call("describeCluster", () -> {
            var cluster = admin.describeCluster();
            Attempts.check(!cluster.clusterId().get().isEmpty(), "no cluster id");
            Attempts.check(cluster.nodes().get().contains(cluster.controller().get()), "no such controller");
            return List.copyOf(cluster.nodes().get());
        });
        attempts.call("describeFeatures", () -> admin.describeFeatures().featureMetadata().get());
        return brokers.orElseThrow(() -> new IllegalStateException("no broker to ask about")).get(0).id();
    }

    private void topics() {
        attempts.call("createTopics", () -> {
            var created = admin.createTopics(List.of(
                    new NewTopic(topic, Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "3600000"))));
            Attempts.check(created.numPartitions(topic).get() == 2, "not 2 partitions");
            var retention = created.config(topic).get().get("retention.ms");
            Attempts.check(retention.value().equals("3600000"), "the config is ignored: " + retention);
            return null;
        });
        attempts.call("listTopics", () -> {
            Attempts.soon(() -> admin.listTopics().names().get().contains(topic), "the new topic is missing");
            return null;
        });
        attempts.call("createPartitions", () ->
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get());
        attempts.call("describeTopics", () -> {
            Attempts.soon(() -> described().partitions().size() == 3, "not 3 partitions");
            var id = described().topicId();
            var byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id);
            Attempts.check(byId.name().equals(topic), "another topic by id");
            return null;
        });
        attempts.call("electLeaders", () -> {
            var elected = admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions().get().get(first);
            var unneeded = elected.filter(error -> error instanceof ElectionNotNeededException);
            Attempts.check(unneeded.isPresent(), "not told that no election is needed: " + elected);
            return null;
        });
    }

    private TopicDescription described() throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    private void configs(int broker) {
        var brokerConfig = new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(broker));
        attempts.call("describeConfigs topic", () -> {
            Attempts.soon(() -> topicConfig("retention.ms").equals("3600000"), "not the topic's own value");
            return null;
        });
        attempts.call("describeConfigs broker", () -> {
            var entries = admin.describeConfigs(List.of(brokerConfig)).all().get().get(brokerConfig).entries();
            Attempts.check(!entries.isEmpty(), "no configs");
            return null;
        });
        attempts.call("incrementalAlterConfigs set", () -> {
            alter(topicConfig, "max.message.bytes", "123456", AlterConfigOp.OpType.SET);
            Attempts.soon(() -> topicConfig("max.message.bytes").equals("123456"), "the value did not arrive");
            return null;
        });
        attempts.call("incrementalAlterConfigs append", () -> {
            alter(topicConfig, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
            var both = Set.of("delete", "compact");
            Attempts.soon(() -> Set.of(topicConfig("cleanup.policy").split(",")).equals(both), "not both policies");
            return null;
        });
        attempts.call("incrementalAlterConfigs subtract", () -> {
            alter(topicConfig, "cleanup.policy", "compact", AlterConfigOp.OpType.SUBTRACT);
            Attempts.soon(() -> topicConfig("cleanup.policy").equals("delete"), "not the one that is left");
            return null;
        });
        attempts.call("incrementalAlterConfigs delete", () -> {
            alter(topicConfig, "max.message.bytes", "", AlterConfigOp.OpType.DELETE);
            Attempts.soon(() -> !topicConfig("max.message.bytes").equals("123456"), "the value is still there");
            return null;
        });
        attempts.call("listConfigResources", () -> admin.listConfigResources().all().get());
    }

    private String topicConfig(String name) throws Exception {
        return admin.describeConfigs(List.of(topicConfig)).all().get().get(topicConfig).get(name).value();
    }

    private void alter(ConfigResource resource, String name, String value, AlterConfigOp.OpType op) throws Exception {
        var change = new AlterConfigOp(new ConfigEntry(name, value), op);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    private void records(int broker) {
        attempts.call("produce", () -> {
            Map<String, Object> config = Map.of("bootstrap.servers", bootstrap);
            try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                for (long number = 0; number < RECORDS; number++) {
                    producer.send(new ProducerRecord<>(topic, 0, 1000 + number, "k" + number, "v" + number)).get();
                }
                return null;
            }
        });
        attempts.call("describeProducers", () -> {
            var active = admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers();
            Attempts.check(active.size() == 1, active.size() + " producers");
            Attempts.check(active.get(0).lastSequence() == RECORDS - 1, active.toString());
            return null;
        });
        attempts.call("listOffsets", () -> {
            Attempts.check(listed(OffsetSpec.earliest()).offset() == 0, "earliest");
            Attempts.check(listed(OffsetSpec.latest()).offset() == RECORDS, "latest");
            Attempts.check(listed(OffsetSpec.maxTimestamp()).offset() == RECORDS - 1, "max timestamp");
            Attempts.check(listed(OffsetSpec.forTimestamp(1005)).offset() == 5, "for timestamp");
            return null;
        });
        attempts.call("describeLogDirs", () -> {
            var folders = admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker).values();
            Attempts.check(!folders.isEmpty(), "no folder");
            return null;
        });
        attempts.call("describeReplicaLogDirs", () -> {
            var replica = new TopicPartitionReplica(topic, 0, described().partitions().get(0).leader().id());
            var place = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
            Attempts.check(place.getCurrentReplicaLogDir() != null, "in no folder");
            return null;
        });
        attempts.call("deleteRecords", () -> {
            var deleted = admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).lowWatermarks();
            Attempts.check(deleted.get(first).get().lowWatermark() == 4, "low watermark");
            Attempts.check(listed(OffsetSpec.earliest()).offset() == 4, "earliest");
            return null;
        });
    }

    private ListOffsetsResultInfo listed(OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(first, spec)).partitionResult(first).get();
    }

    private void groups() {
        attempts.call("alterConsumerGroupOffsets", () ->
                admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(7))).all().get());
        attempts.call("listConsumerGroupOffsets", () -> {
            Attempts.check(committed().offset() == 7, "not the offset that was set");
            return null;
        });
        withMember(this::groupWithMember);
        attempts.call("deleteConsumerGroupOffsets", () -> {
            admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
            Attempts.check(committed() == null, "still there");
            return null;
        });
        attempts.call("deleteConsumerGroups", () -> {
            admin.deleteConsumerGroups(List.of(group)).all().get();
            var groups = admin.listGroups().all().get();
            Attempts.check(groups.stream().noneMatch(one -> one.groupId().equals(group)), "still there");
            return null;
        });
    }

    private OffsetAndMetadata committed() throws Exception {
        var asked = new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(first));
        var listed = admin.listConsumerGroupOffsets(Map.of(group, asked));
        return listed.partitionsToOffsetAndMetadata(group).get().get(first);
    }

    /** Does `work` while one static member owns all partitions of the group. */
    private void withMember(Runnable work) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "group.id", group,
                "group.protocol", "classic", "enable.auto.commit", "false", "group.instance.id", "first");
        try (var member = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            member.subscribe(List.of(topic));
            long deadlineNanos = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (member.assignment().isEmpty() && System.nanoTime() < deadlineNanos) {
                member.poll(Duration.ofMillis(100));
            }
            work.run();
        }
    }

    private void groupWithMember() {
        attempts.call("listGroups", () -> {
            var groups = admin.listGroups().all().get();
            Attempts.check(groups.stream().anyMatch(one -> one.groupId().equals(group)
                    && one.type().equals(Optional.of(GroupType.CLASSIC))
                    && one.groupState().equals(Optional.of(GroupState.STABLE))), groups.toString());
            return null;
        });
        attempts.call("listConsumerGroups", () -> {
            var groups = admin.listConsumerGroups().all().get();
            Attempts.check(groups.stream().anyMatch(one -> one.groupId().equals(group)), groups.toString());
            return null;
        });
        attempts.call("describeConsumerGroups", () -> {
            var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Attempts.check(described.groupState() == GroupState.STABLE, described.toString());
            var member = described.members().iterator().next();
            Attempts.check(member.groupInstanceId().equals(Optional.of("first")), member.toString());
            Attempts.check(member.assignment().topicPartitions().size() == 3, member.toString());
            return null;
        });
        attempts.call("describeClassicGroups", () -> {
            var described = admin.describeClassicGroups(List.of(group)).all().get().get(group);
            Attempts.check(described.members().size() == 1, described.toString());
            return null;
        });
        attempts.call("removeMembersFromConsumerGroup", () -> {
            var first = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("first")));
            admin.removeMembersFromConsumerGroup(group, first).all().get();
            var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Attempts.check(described.members().isEmpty(), described.toString());
            return null;
        });
    }

    private void deleteTopics() {
        attempts.call("deleteTopics", () -> {
            admin.deleteTopics(List.of(topic)).all().get();
            Attempts.soon(() -> !admin.listTopics().names().get().contains(topic), "still there");
            return null;
        });
    }
}
