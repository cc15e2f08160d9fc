import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.timeline.SnapshotRegistry;
import org.apache.kafka.timeline.TimelineHashMap;

/**
 * Kafka's server-side assignors, asked line by line. A line is a word and its values, with tabs between them; "-" is
 * nothing, a topic is its id in hex.
 *
 *   topic    TOPIC  COUNT
 *   member   ID  INSTANCE  RACK  TOPICS  TARGET         "t,u", "t:0,1;u:2"
 *   assign   ASSIGNOR  TYPE    what was named since the last assign; answers a line "ID TARGET" for each member that the
 *                              assignor names, then "took" and the nanoseconds of CPU
 *
 *   members  CHANGES...        "+ID" joins, "-ID" leaves, "=ID" joins with the heartbeat that computes targets; answers ids
 *                              in the order in which they are handed to an assignor
 *
 * A target is made as the coordinator makes it of a record, and members are put into a HashMap in the order of
 * their lines.
 */
public class ServerAssignors {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    /** What was named since the last assign. Never used again: a HashMap that was emptied keeps its size. */
    private static final class Group implements SubscribedTopicDescriber {
        private final Map<Uuid, Integer> counts = new HashMap<>();
        private final Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        private final Map<Uuid, Map<Integer, String>> holders = new HashMap<>();

        private void addMember(String id, String instance, String rack, String topics, String has) {
            Assignment target = target(has);
            members.put(id, new MemberSubscriptionAndAssignmentImpl(
                optional(rack), optional(instance), subscribed(topics), target));
            target.partitions().forEach((topic, numbers) -> numbers.forEach(number ->
                holders.computeIfAbsent(topic, any -> new HashMap<>()).put(number, id)));
        }

        private void assign(PrintStream out, ConsumerGroupPartitionAssignor assignor, SubscriptionType type) {
            GroupSpec spec = new GroupSpecImpl(members, type, holders);
            long began = THREADS.getCurrentThreadCpuTime();
            Map<String, MemberAssignment> targets = assignor.assign(spec, this).members();
            long took = THREADS.getCurrentThreadCpuTime() - began;
            targets.forEach((id, target) -> out.println(id + "\t" + text(target.partitions())));
            out.println("took\t" + took);
            out.flush();
        }

        @Override
        public int numPartitions(Uuid topic) {
            return counts.getOrDefault(topic, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Group group = new Group();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] values = line.split("\t", -1);
            switch (values[0]) {
                case "topic" -> group.counts.put(topic(values[1]), Integer.parseInt(values[2]));
                case "member" -> group.addMember(values[1], values[2], values[3], values[4], values[5]);
                case "assign" -> {
                    group.assign(out, assignor(values[1]), SubscriptionType.valueOf(values[2]));
                    group = new Group();
                }
                case "members" -> answer(out, members(values));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static void answer(PrintStream out, Set<String> texts) {
        out.println(String.join("\t", texts));
        out.flush();
    }

    /** The coordinator puts a member once for each of its two records. */
    private static Set<String> members(String[] changes) {
        TimelineHashMap<String, Integer> group = new TimelineHashMap<>(new SnapshotRegistry(new LogContext()), 0);
        Map<String, Integer> handed = new HashMap<>();
        List<String> newcomers = new ArrayList<>();
        for (String change : List.of(changes).subList(1, changes.length)) {
            String id = change.substring(1);
            switch (change.charAt(0)) {
                case '+' -> {
                    group.put(id, 1);
                    group.put(id, 2);
                }
                case '-' -> group.remove(id);
                case '=' -> newcomers.add(id);
                default -> throw new IllegalArgumentException(change);
            }
        }
        group.forEach(handed::put);
        newcomers.forEach(id -> handed.put(id, 1));
        return handed.keySet();
    }

    private static ConsumerGroupPartitionAssignor assignor(String name) {
        return switch (name) {
            case "uniform" -> new UniformAssignor();
            case "range" -> new RangeAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static Uuid topic(String hex) {
        return new Uuid(Long.parseUnsignedLong(hex, 0, 16, 16), Long.parseUnsignedLong(hex, 16, 32, 16));
    }

    private static Set<Uuid> subscribed(String value) {
        Set<Uuid> topics = new LinkedHashSet<>();
        if (value.equals("-")) return topics;
        for (String hex : value.split(",")) topics.add(topic(hex));
        return topics;
    }

    private static Assignment target(String value) {
        Map<Uuid, Set<Integer>> topics = new HashMap<>();
        if (value.equals("-")) return new Assignment(topics);
        for (String each : value.split(";")) {
            String[] parts = each.split(":");
            List<Integer> numbers = new ArrayList<>();
            for (String number : parts[1].split(",")) numbers.add(Integer.valueOf(number));
            topics.put(topic(parts[0]), new HashSet<>(numbers));
        }
        return new Assignment(topics);
    }

    private static Optional<String> optional(String value) {
        return value.equals("-") ? Optional.empty() : Optional.of(value);
    }

    private static String text(Map<Uuid, Set<Integer>> target) {
        if (target.isEmpty()) return "-";
        return target.entrySet().stream()
            .map(each -> String.format(
                "%016x%016x:%s",
                each.getKey().getMostSignificantBits(),
                each.getKey().getLeastSignificantBits(),
                new TreeSet<>(each.getValue()).stream().map(String::valueOf).collect(Collectors.joining(","))))
            .collect(Collectors.joining(";"));
    }
}
