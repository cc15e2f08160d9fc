import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.env.MapPropertySource;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.listener.ConsumerAwareRebalanceListener;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.transaction.support.AbstractPlatformTransactionManager;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Exactly once with Spring's transactional listener: `java Listener BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID
 * SESSION_TIMEOUT_MS ABORT_EVERY RECORDS_MAX`. To abort, it throws: Spring rolls back, and delivers again. See
 * tests/interop/transactions/clients.py.
 */
@Configuration
@EnableKafka
public class Listener implements ConsumerAwareRebalanceListener {
    private static final int PARTITIONS = 3;
    /**
     * What one that was killed has left open is waited for: Spring makes a producer when there is something to do, and
     * whoever reads on waits until offsets that are pending are not.
     */
    private static final int TRANSACTION_TIMEOUT_MS = 5_000;
    private static final long POLL_MS = 100;
    /** A fetch that waits at the end holds up the one from where the consumer goes back to. */
    private static final int FETCH_MAX_WAIT_MS = 50;

    @Value("${bootstrap}")
    private String bootstrap;

    @Value("${target}")
    private String target;

    @Value("${abort.every}")
    private int abortEvery;

    private int begun;

    public static void main(String[] args) throws Exception {
        var names = List.of("bootstrap", "group", "source", "target", "transactional.id", "session.timeout.ms",
                "abort.every", "records.max");
        Map<String, Object> told = new HashMap<>();
        names.forEach(name -> told.put(name, args[names.indexOf(name)]));
        try (var context = new AnnotationConfigApplicationContext()) {
            context.getEnvironment().getPropertySources().addFirst(new MapPropertySource("told", told));
            context.register(Listener.class);
            context.refresh();
            while (System.in.read() >= 0) {}
        }
        Lines.print("event", "left");
    }

    @Bean
    ProducerFactory<String, String> producers(@Value("${transactional.id}") String transactionalId) {
        Map<String, Object> writing =
                Map.of("bootstrap.servers", bootstrap, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS);
        var factory = new DefaultKafkaProducerFactory<>(writing, new StringSerializer(), new StringSerializer());
        factory.setTransactionIdPrefix(transactionalId);
        return factory;
    }

    @Bean
    KafkaTemplate<String, String> template(ProducerFactory<String, String> producers) {
        return new KafkaTemplate<>(producers);
    }

    @Bean
    KafkaTransactionManager<String, String> transactions(ProducerFactory<String, String> producers) {
        var manager = new KafkaTransactionManager<>(producers);
        manager.setTransactionSynchronization(
                AbstractPlatformTransactionManager.SYNCHRONIZATION_ON_ACTUAL_TRANSACTION);
        return manager;
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory(
            KafkaTransactionManager<String, String> transactions,
            @Value("${session.timeout.ms}") int sessionTimeoutMs,
            @Value("${records.max}") int recordsMax) {
        Map<String, Object> reading = Map.of(
                "bootstrap.servers", bootstrap,
                "auto.offset.reset", "earliest",
                "isolation.level", "read_committed",
                "fetch.max.wait.ms", FETCH_MAX_WAIT_MS,
                "session.timeout.ms", sessionTimeoutMs,
                "heartbeat.interval.ms", sessionTimeoutMs / 10,
                "max.poll.records", recordsMax);
        var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
        factory.setConsumerFactory(
                new DefaultKafkaConsumerFactory<>(reading, new StringDeserializer(), new StringDeserializer()));
        factory.setBatchListener(true);
        factory.setAfterRollbackProcessor(
                new DefaultAfterRollbackProcessor<>(new FixedBackOff(0, FixedBackOff.UNLIMITED_ATTEMPTS)));
        factory.getContainerProperties().setKafkaAwareTransactionManager(transactions);
        factory.getContainerProperties().setConsumerRebalanceListener(this);
        factory.getContainerProperties().setPollTimeout(POLL_MS);
        return factory;
    }

    @Bean
    Transform transform(KafkaTemplate<String, String> template) {
        return new Transform(template);
    }

    final class Transform {
        private final KafkaTemplate<String, String> template;

        Transform(KafkaTemplate<String, String> template) {
            this.template = template;
        }

        @KafkaListener(topics = "${source}", groupId = "${group}")
        public void transform(List<ConsumerRecord<String, String>> records) {
            boolean kept = abortEvery == 0 || ++begun % abortEvery != 0;
            say("began", records.size());
            var end = new End(records.size());
            TransactionSynchronizationManager.registerSynchronization(end);
            List<CompletableFuture<?>> sent = new ArrayList<>();
            for (var record : records) {
                long number = Long.parseLong(record.value());
                int partition = (int) (number / PARTITIONS % PARTITIONS);
                sent.add(template.send(target, partition, "k" + number, number + " " + number * number));
            }
            template.flush();
            sent.forEach(CompletableFuture::join);
            say("sent", records.size());
            if (!kept) {
                end.onPurpose = true;
                throw new IllegalStateException("aborted on purpose");
            }
        }
    }

    /** Tells how a transaction ended. */
    private static final class End implements TransactionSynchronization {
        private final int records;
        private boolean onPurpose;

        End(int records) {
            this.records = records;
        }

        @Override
        public void afterCompletion(int status) {
            if (status == STATUS_COMMITTED) {
                say("committed", records);
            } else if (onPurpose && status == STATUS_ROLLED_BACK) {
                say("aborted", records);
            } else {
                say("failed", 0);
            }
        }
    }

    private static void say(String step, int records) {
        Lines.print("event", "transaction", "step", step, "records", records);
    }

    @Override
    public void onPartitionsAssigned(Consumer<?, ?> consumer, Collection<TopicPartition> added) {
        Lines.print("event", "assigned", "generation", consumer.groupMetadata().generationId(), "owned",
                owned(consumer));
    }

    @Override
    public void onPartitionsRevokedAfterCommit(Consumer<?, ?> consumer, Collection<TopicPartition> revoked) {
        var owned = owned(consumer);
        revoked.forEach(partition -> owned.remove(partition.partition()));
        Lines.print("event", "revoked", "owned", owned);
    }

    private static TreeSet<Integer> owned(Consumer<?, ?> consumer) {
        TreeSet<Integer> owned = new TreeSet<>();
        consumer.assignment().forEach(partition -> owned.add(partition.partition()));
        return owned;
    }
}
