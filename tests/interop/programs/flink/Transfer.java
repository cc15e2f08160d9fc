import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A job of Flink, in a cluster within this process: `java Transfer BOOTSTRAP SOURCE TARGET PREFIX STRATEGY FOLDER`. It
 * goes on from the last checkpoint in FOLDER, and stands still before it commits while FOLDER has a file `hold`. See
 * tests/interop/transactions/flink.py.
 */
public final class Transfer {
    private static final int PARALLELISM = 2;
    private static final int PARTITIONS = 3;
    private static final String CHECKPOINT_INTERVAL = "100 ms";
    private static final String TRANSACTION_TIMEOUT_MS = "600000";

    public static void main(String[] args) throws Exception {
        var config = new Configuration();
        config.setString("execution.checkpointing.interval", CHECKPOINT_INTERVAL);
        config.setString("execution.checkpointing.dir", Path.of(args[5]).toUri().toString());
        config.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        config.setString("restart-strategy.type", "none");
        config.setString("taskmanager.memory.network.fraction", "0.05");
        lastCheckpoint(Path.of(args[5])).ifPresent(
                path -> config.setString("execution.state-recovery.path", path.toUri().toString()));
        try (var env = StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, config)) {
            env.fromSource(source(args[0], args[1]), WatermarkStrategy.noWatermarks(), "numbers")
                    .map(number -> number + " " + Long.parseLong(number) * Long.parseLong(number))
                    .sinkTo(new Holding(sink(args[0], args[2], args[3], args[4]), new File(args[5], "hold")));
            var job = env.executeAsync();
            job.getJobExecutionResult().whenComplete((result, failure) -> {
                if (failure != null) {
                    failure.printStackTrace();
                    System.exit(1);
                }
            });
            while (System.in.read() >= 0) {}
            job.stopWithSavepoint(false, Path.of(args[5], "end").toUri().toString(), SavepointFormatType.DEFAULT).get();
        }
        Lines.print("event", "left");
    }

    private static KafkaSource<String> source(String bootstrap, String topic) {
        return KafkaSource.<String>builder()
                .setBootstrapServers(bootstrap)
                .setTopics(topic)
                .setGroupId(topic)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setProperty("isolation.level", "read_committed")
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
    }

    private static KafkaSink<String> sink(String bootstrap, String topic, String prefix, String strategy) {
        var written = KafkaRecordSerializationSchema.<String>builder()
                .setTopic(topic)
                .setPartitioner(
                        (value, key, bytes, name, partitions) -> (int) (number(value) / PARTITIONS % PARTITIONS))
                .setKeySerializationSchema(value -> ("k" + number(value)).getBytes(StandardCharsets.UTF_8))
                .setValueSerializationSchema(new SimpleStringSchema())
                .build();
        return KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(prefix)
                .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(strategy))
                .setProperty("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
                .setRecordSerializer(written)
                .build();
    }

    private static long number(String value) {
        return Long.parseLong(value.substring(0, value.indexOf(' ')));
    }

    /** The newest that is complete, of any of the jobs that have been here. */
    private static Optional<Path> lastCheckpoint(Path folder) throws Exception {
        try (var found = Files.walk(folder)) {
            return found.filter(path -> path.getFileName().toString().equals("_metadata"))
                    .max(Comparator.comparingLong(path -> path.toFile().lastModified()))
                    .map(Path::getParent);
        }
    }
}
