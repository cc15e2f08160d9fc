import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Exactly once, of any generation of the client from 3.0 on: `java Transform BOOTSTRAP GROUP SOURCE TARGET
 * TRANSACTIONAL_ID SESSION_TIMEOUT_MS ABORT_EVERY RECORDS_MAX`. See tests/interop/transactions/clients.py.
 */
public final class Transform implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int PARTITIONS = 3;
    /** A fetch that waits at the end holds up the one from where the consumer goes back to. */
    private static final int FETCH_MAX_WAIT_MS = 50;

    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final String source;
    private final String target;
    private final int abortEvery;
    private int begun;
    private volatile boolean leaving;

    private Transform(String[] args) {
        source = args[2];
        target = args[3];
        abortEvery = Integer.parseInt(args[6]);
        int sessionTimeoutMs = Integer.parseInt(args[5]);
        Map<String, Object> writing = Map.of("bootstrap.servers", args[0], "transactional.id", args[4]);
        producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
        Map<String, Object> reading = new HashMap<>();
        reading.put("bootstrap.servers", args[0]);
        reading.put("group.id", args[1]);
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("fetch.max.wait.ms", FETCH_MAX_WAIT_MS);
        reading.put("session.timeout.ms", sessionTimeoutMs);
        reading.put("heartbeat.interval.ms", sessionTimeoutMs / 10);
        reading.put("max.poll.records", args[7]);
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    }

    public static void main(String[] args) throws Exception {
        new Transform(args).run();
    }

    private void run() throws Exception {
        var inputEnds = new Thread(this::leaveWhenInputEnds, "input");
        inputEnds.setDaemon(true);
        inputEnds.start();
        try (producer; consumer) {
            producer.initTransactions();
            consumer.subscribe(List.of(source), this);
            while (!leaving) {
                var records = consumer.poll(POLL);
                if (!records.isEmpty()) {
                    begun++;
                    transaction(records, abortEvery == 0 || begun % abortEvery != 0);
                }
            }
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

    /** Commits, or aborts on purpose or because it failed; then the consumer goes back to what is committed. */
    private void transaction(ConsumerRecords<String, String> records, boolean kept) throws Exception {
        try {
            say("began", records.count());
            producer.beginTransaction();
            send(records);
            say("sent", records.count());
            producer.sendOffsetsToTransaction(nextOffsets(records), consumer.groupMetadata());
            say("offsets", records.count());
            if (kept) {
                ended(producer::commitTransaction);
                say("committed", records.count());
            } else {
                ended(producer::abortTransaction);
                say("aborted", records.count());
                goBack();
            }
        } catch (ProducerFencedException replaced) {
            throw replaced;
        } catch (KafkaException failure) {
            System.err.println("failed: " + failure);
            say("failed", 0);
            ended(producer::abortTransaction);
            goBack();
        }
    }

    private void send(ConsumerRecords<String, String> records) throws InterruptedException {
        List<Future<?>> sent = new ArrayList<>();
        for (var record : records) {
            long number = Long.parseLong(record.value());
            int partition = (int) (number / PARTITIONS % PARTITIONS);
            String value = number + " " + number * number;
            sent.add(producer.send(new ProducerRecord<>(target, partition, "k" + number, value)));
        }
        producer.flush();
        for (var one : sent) {
            try {
                one.get();
            } catch (ExecutionException failed) {
                throw failed.getCause() instanceof KafkaException cause ? cause : new KafkaException(failed);
            }
        }
    }

    private Map<TopicPartition, OffsetAndMetadata> nextOffsets(ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        for (var record : records) {
            next.put(new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1, record.leaderEpoch(), ""));
        }
        return next;
    }

    /** Asks for the end again until the outcome is known. */
    private static void ended(Runnable end) {
        while (true) {
            try {
                end.run();
                return;
            } catch (TimeoutException unknown) {
                System.err.println("the end is not known yet: " + unknown);
            }
        }
    }

    private void goBack() {
        consumer.committed(consumer.assignment()).forEach((partition, committed) -> {
            if (committed == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, committed);
            }
        });
    }

    private static void say(String step, int records) {
        Lines.print("event", "transaction", "step", step, "records", records);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> added) {
        Lines.print("event", "assigned", "generation", consumer.groupMetadata().generationId(), "owned", owned());
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        TreeSet<Integer> owned = owned();
        revoked.forEach(partition -> owned.remove(partition.partition()));
        Lines.print("event", "revoked", "owned", owned);
    }

    private TreeSet<Integer> owned() {
        TreeSet<Integer> owned = new TreeSet<>();
        consumer.assignment().forEach(partition -> owned.add(partition.partition()));
        return owned;
    }
}
