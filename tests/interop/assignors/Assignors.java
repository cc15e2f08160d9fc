import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's assignors, asked line by line. A line is a word and its values, with tabs between them; "-" is nothing.
 *
 *   topic    NAME  COUNT  RACKS...             racks of the replicas, one value for each partition: "a,b"
 *   member   ID  INSTANCE  RACK  GENERATION  TOPICS  OWNED  USER_DATA    "t,u", "t:0,1;u:2", bytes in hex
 *   assign   ASSIGNOR    what was named since the last assign; answers a line "ID OWNED" for each member,
 *                        then "took" and the nanoseconds
 *   userdata ASSIGNOR  GENERATION  TOPICS  OWNED           answers the bytes after that assignment, in hex
 *   subscription  RACK  GENERATION  TOPICS  OWNED  USER_DATA    answers the bytes of JoinGroup, in hex
 *   assignment  OWNED                                           answers the bytes of SyncGroup, in hex
 */
public class Assignors {
    private static final Map<String, Node> NODES = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Subscription> members = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] values = line.split("\t", -1);
            switch (values[0]) {
                case "topic" -> addTopic(partitions, values);
                case "member" -> {
                    Subscription subscription =
                        subscription(values[3], values[4], values[5], values[6], values[7]);
                    subscription.setGroupInstanceId(optional(values[2]));
                    members.put(values[1], subscription);
                }
                case "assign" -> {
                    assign(out, values[1], partitions, members);
                    partitions.clear();
                    members.clear();
                }
                case "userdata" -> {
                    ConsumerPartitionAssignor assignor = assignor(values[1]);
                    int generation = Integer.parseInt(values[2]);
                    assignor.onAssignment(
                        new Assignment(owned(values[4])),
                        new ConsumerGroupMetadata("group", generation, "member", Optional.empty()));
                    out.println(hex(assignor.subscriptionUserData(Set.copyOf(names(values[3])))));
                }
                case "subscription" -> out.println(hex(ConsumerProtocol.serializeSubscription(
                    subscription(values[1], values[2], values[3], values[4], values[5]))));
                case "assignment" -> out.println(hex(ConsumerProtocol.serializeAssignment(
                    new Assignment(owned(values[1])))));
                default -> throw new IllegalArgumentException(line);
            }
            out.flush();
        }
    }

    private static void assign(
        PrintStream out, String name, List<PartitionInfo> partitions, Map<String, Subscription> members
    ) {
        Set<Node> nodes = new HashSet<>(NODES.values());
        Cluster cluster = new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
        GroupSubscription group = new GroupSubscription(members);
        ConsumerPartitionAssignor assignor = assignor(name);
        long began = System.nanoTime();
        Map<String, Assignment> assigned = assignor.assign(cluster, group).groupAssignment();
        long took = System.nanoTime() - began;
        assigned.forEach((id, each) -> out.println(id + "\t" + text(each.partitions())));
        out.println("took\t" + took);
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static void addTopic(List<PartitionInfo> partitions, String[] values) {
        int count = Integer.parseInt(values[2]);
        for (int partition = 0; partition < count; partition++) {
            List<String> racks = values.length > 3 ? names(values[3 + partition]) : List.of();
            Node[] replicas = racks.isEmpty()
                ? new Node[] {node(null)}
                : racks.stream().map(Assignors::node).toArray(Node[]::new);
            partitions.add(new PartitionInfo(values[1], partition, replicas[0], replicas, replicas));
        }
    }

    private static Node node(String rack) {
        return NODES.computeIfAbsent(
            String.valueOf(rack), any -> new Node(NODES.size(), "localhost", 1, rack));
    }

    private static Subscription subscription(
        String rack, String generation, String topics, String owned, String userData
    ) {
        ByteBuffer data = userData.equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(userData));
        return new Subscription(names(topics), data, owned(owned), Integer.parseInt(generation), optional(rack));
    }

    private static Optional<String> optional(String value) {
        return value.equals("-") ? Optional.empty() : Optional.of(value);
    }

    private static List<String> names(String value) {
        return value.equals("-") ? List.of() : List.of(value.split(","));
    }

    private static List<TopicPartition> owned(String value) {
        List<TopicPartition> partitions = new ArrayList<>();
        if (value.equals("-")) return partitions;
        for (String topic : value.split(";")) {
            String[] parts = topic.split(":");
            for (String number : parts[1].split(",")) {
                partitions.add(new TopicPartition(parts[0], Integer.parseInt(number)));
            }
        }
        return partitions;
    }

    private static String text(Collection<TopicPartition> partitions) {
        TreeMap<String, TreeSet<Integer>> topics = new TreeMap<>();
        for (TopicPartition each : partitions) {
            if (!topics.computeIfAbsent(each.topic(), any -> new TreeSet<>()).add(each.partition())) {
                throw new IllegalStateException("twice: " + each);
            }
        }
        if (topics.isEmpty()) return "-";
        List<String> parts = new ArrayList<>();
        topics.forEach((topic, numbers) -> parts.add(
            topic + ":" + String.join(",", numbers.stream().map(String::valueOf).toList())));
        return String.join(";", parts);
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null) return "-";
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return HexFormat.of().formatHex(copy);
    }
}
