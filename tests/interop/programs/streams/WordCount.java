import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * Counts words exactly once: `java WordCount BOOTSTRAP APPLICATION SOURCE TARGET STATE_FOLDER SESSION_TIMEOUT_MS`. Every
 * word that is counted becomes a record with its count so far. What it prints is said in
 * tests/interop/transactions/words.py; it closes when its standard input ends.
 */
public final class WordCount {
    private static final int TOLD_EVERY = 10;
    /** What one that was killed has left open is waited for. */
    private static final int TRANSACTION_TIMEOUT_MS = 5_000;

    private final AtomicLong counted = new AtomicLong();
    private volatile boolean leaving;
    private volatile boolean failed;

    public static void main(String[] args) throws Exception {
        new WordCount().run(args);
    }

    private void run(String[] args) throws Exception {
        var inputEnds = new Thread(this::leaveWhenInputEnds, "input");
        inputEnds.setDaemon(true);
        inputEnds.start();
        try (var streams = new KafkaStreams(topology(args[2], args[3]), config(args))) {
            streams.setUncaughtExceptionHandler(failure -> {
                failure.printStackTrace();
                failed = true;
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            var owned = new TreeSet<Integer>();
            while (!leaving && !failed) {
                var now = sourcePartitions(streams);
                if (!now.equals(owned)) {
                    owned = now;
                    Lines.print("event", "assigned", "generation", null, "owned", owned);
                }
                Thread.sleep(50); // nobody tells of tasks that have moved
            }
            if (failed || !streams.close(Duration.ofSeconds(30))) {
                System.exit(1);
            }
        }
        Lines.print("event", "left");
    }

    private Topology topology(String source, String target) {
        var builder = new StreamsBuilder();
        builder.<String, String>stream(source)
                .flatMap((key, line) -> List.of(line.split(" ")).stream().map(word -> KeyValue.pair(word, word)).toList())
                .groupByKey()
                .count()
                .toStream()
                .mapValues(String::valueOf)
                .peek((word, count) -> tellSometimes())
                .to(target);
        return builder.build();
    }

    private static Properties config(String[] args) {
        var config = new Properties();
        int sessionTimeoutMs = Integer.parseInt(args[5]);
        config.put("bootstrap.servers", args[0]);
        config.put("application.id", args[1]);
        config.put("state.dir", args[4]);
        config.put("processing.guarantee", "exactly_once_v2");
        config.put("statestore.cache.max.bytes", 0); // every count is forwarded
        config.put("replication.factor", 1);
        config.put("default.key.serde", Serdes.StringSerde.class);
        config.put("default.value.serde", Serdes.StringSerde.class);
        config.put("consumer.auto.offset.reset", "earliest");
        config.put("consumer.session.timeout.ms", sessionTimeoutMs);
        config.put("producer.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS);
        config.put("consumer.heartbeat.interval.ms", sessionTimeoutMs / 10);
        return config;
    }

    private void tellSometimes() {
        if (counted.incrementAndGet() % TOLD_EVERY == 0) {
            Lines.print("event", "transaction", "step", "counted", "records", TOLD_EVERY);
        }
    }

    /** Those whose tasks this instance has. */
    private static TreeSet<Integer> sourcePartitions(KafkaStreams streams) {
        var owned = new TreeSet<Integer>();
        for (var thread : streams.metadataForLocalThreads()) {
            for (var task : thread.activeTasks()) {
                if (task.taskId().subtopology() == 0) {
                    owned.add(task.taskId().partition());
                }
            }
        }
        return owned;
    }

    private void leaveWhenInputEnds() {
        try {
            while (System.in.read() >= 0) {}
        } catch (java.io.IOException broken) {
            // An input that breaks has ended as well.
        }
        leaving = true;
    }
}
