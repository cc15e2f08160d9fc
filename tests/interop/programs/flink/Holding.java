import java.io.File;
import java.io.IOException;
import java.io.Serializable;
import java.util.Collection;
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.api.connector.sink2.CommitterInitContext;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.StatefulSinkWriter;
import org.apache.flink.api.connector.sink2.SupportsCommitter;
import org.apache.flink.api.connector.sink2.SupportsWriterState;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.kafka.sink.KafkaCommittable;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.KafkaWriterState;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.connector.sink2.CommittableMessage;
import org.apache.flink.streaming.api.connector.sink2.SupportsPostCommitTopology;
import org.apache.flink.streaming.api.datastream.DataStream;

/**
 * Flink's sink as it is, but that it tells when transactions are to be committed, and stands still at that point while
 * a file is there, unless they are another process's: those have no producer here yet.
 */
final class Holding
        implements Sink<String>,
                SupportsWriterState<String, KafkaWriterState>,
                SupportsCommitter<KafkaCommittable>,
                SupportsPostCommitTopology<KafkaCommittable>,
                Serializable {
    private final KafkaSink<String> sink;
    private final File hold;

    Holding(KafkaSink<String> sink, File hold) {
        this.sink = sink;
        this.hold = hold;
    }

    @Override
    public Committer<KafkaCommittable> createCommitter(CommitterInitContext context) throws IOException {
        var committer = sink.createCommitter(context);
        return new Committer<>() {
            @Override
            public void commit(Collection<CommitRequest<KafkaCommittable>> requests)
                    throws IOException, InterruptedException {
                if (requests.stream().anyMatch(each -> each.getCommittable().getProducer().isEmpty())) {
                    say("resumed", requests);
                } else if (!requests.isEmpty()) {
                    say("prepared", requests);
                    if (hold.exists()) {
                        say("held", requests);
                        Thread.sleep(Long.MAX_VALUE);
                    }
                }
                committer.commit(requests);
            }

            @Override
            public void close() throws Exception {
                committer.close();
            }
        };
    }

    private static void say(String step, Collection<?> transactions) {
        Lines.print("event", "transaction", "step", step, "records", transactions.size());
    }

    @Override
    public SimpleVersionedSerializer<KafkaCommittable> getCommittableSerializer() {
        return sink.getCommittableSerializer();
    }

    @Override
    public SinkWriter<String> createWriter(WriterInitContext context) throws IOException {
        return sink.createWriter(context);
    }

    @Override
    public StatefulSinkWriter<String, KafkaWriterState> restoreWriter(
            WriterInitContext context, Collection<KafkaWriterState> states) throws IOException {
        return sink.restoreWriter(context, states);
    }

    @Override
    public SimpleVersionedSerializer<KafkaWriterState> getWriterStateSerializer() {
        return sink.getWriterStateSerializer();
    }

    @Override
    public void addPostCommitTopology(DataStream<CommittableMessage<KafkaCommittable>> committed) {
        sink.addPostCommitTopology(committed);
    }
}
