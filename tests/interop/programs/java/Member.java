import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * One member of a group, telling what happens to it: `java Member ASSIGNOR BOOTSTRAP GROUP TOPIC SESSION_TIMEOUT_MS
 * [CONFIG=VALUE...]`, where ASSIGNOR is the class name of one of Kafka's assignors. With `group.protocol=consumer` the
 * broker says who gets what and how long a session is, and a TOPIC that begins with ^ is a pattern. It leaves when its
 * standard input ends.
 */
public final class Member implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);

    private final KafkaConsumer<String, String> consumer;
    /** Handled and not yet acknowledged as committed: the offset to read next. */
    private final Map<TopicPartition, OffsetAndMetadata> handled = new HashMap<>();

    private volatile boolean leaving;

    private Member(Map<String, Object> config) {
        consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    public static void main(String[] args) throws Exception {
        int sessionTimeoutMs = Integer.parseInt(args[4]);
        Map<String, Object> config = new HashMap<>();
        config.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + args[0]);
        config.put("bootstrap.servers", args[1]);
        config.put("group.id", args[2]);
        config.put("group.protocol", "classic");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("session.timeout.ms", sessionTimeoutMs);
        config.put("heartbeat.interval.ms", Math.max(100, sessionTimeoutMs / 20));
        for (String given : List.of(args).subList(5, args.length)) {
            String[] set = given.split("=", 2);
            config.put(set[0], set[1]);
        }
        if (config.get("group.protocol").equals("consumer")) {
            config.keySet().removeAll(
                    List.of("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"));
        }
        new Member(config).run(args[3]);
    }

    private void run(String topic) {
        if (topic.startsWith("^")) {
            consumer.subscribe(new SubscriptionPattern(topic), this);
        } else {
            consumer.subscribe(List.of(topic), this);
        }
        var inputEnds = new Thread(this::leaveWhenInputEnds, "input");
        inputEnds.setDaemon(true);
        inputEnds.start();
        try (consumer) {
            while (!leaving) {
                for (var record : consumer.poll(POLL)) {
                    Lines.print("event", "record", "partition", Lines.place(record.topic(), record.partition()),
                            "offset", record.offset(), "key", record.key(), "value", record.value());
                    var next = new OffsetAndMetadata(record.offset() + 1, record.leaderEpoch(), "");
                    handled.put(new TopicPartition(record.topic(), record.partition()), next);
                }
                commitHandled();
            }
            commitHandled();
        }
        Lines.print("event", "left");
    }

    private void leaveWhenInputEnds() {
        try {
            while (System.in.read() >= 0) {}
        } catch (java.io.IOException broken) {
            // An input that breaks has ended as well.
        }
        leaving = true;
    }

    /** Commits what was handled; what a rebalance in progress refuses stays for the next time. */
    private void commitHandled() {
        if (handled.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(handled);
        } catch (RebalanceInProgressException later) {
            return;
        } catch (TimeoutException unknown) {
            tellCommit("commit_failed");
            return;
        } catch (CommitFailedException expelled) {
            // The group went on without this member: the next poll says so, and whoever is next reads it again.
            handled.clear();
            return;
        }
        tellCommit("committed");
        handled.clear();
    }

    private void tellCommit(String event) {
        handled.forEach((partition, next) ->
                Lines.print("event", event, "partition", Lines.place(partition.topic(), partition.partition()), "offset",
                        next.offset()));
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> added) {
        Lines.print("event", "assigned", "generation", consumer.groupMetadata().generationId(), "owned", owned());
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        commitHandled();
        tellRevoked(revoked);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> lost) {
        tellRevoked(lost);
    }

    private void tellRevoked(Collection<TopicPartition> gone) {
        TreeSet<Integer> owned = owned();
        gone.forEach(partition -> owned.remove(Lines.place(partition.topic(), partition.partition())));
        gone.forEach(handled::remove);
        Lines.print("event", "revoked", "generation", consumer.groupMetadata().generationId(), "owned", owned);
    }

    private TreeSet<Integer> owned() {
        TreeSet<Integer> owned = new TreeSet<>();
        consumer.assignment().forEach(partition -> owned.add(Lines.place(partition.topic(), partition.partition())));
        return owned;
    }
}
