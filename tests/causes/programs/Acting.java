import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Kafka's Java client as a member that does what it is told: `java Acting TOPIC,TOPIC NAME=VALUE...` with the consumer's
 * own configs. Commands come on standard input, as the package says.
 */
public final class Acting implements ConsumerRebalanceListener {
    private final ConcurrentLinkedQueue<String> commands = new ConcurrentLinkedQueue<>();
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final boolean gains;

    private Acting(Map<String, Object> config) {
        gains = "consumer".equals(config.get("group.protocol"));
        consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> config = new HashMap<>();
        for (String setting : Arrays.asList(args).subList(1, args.length)) {
            int equals = setting.indexOf('=');
            config.put(setting.substring(0, equals), setting.substring(equals + 1));
        }
        config.putIfAbsent("group.protocol", "classic");
        config.put("auto.offset.reset", "earliest");
        new Acting(config).run(List.of(args[0].split(",")));
    }

    private void run(List<String> topics) throws InterruptedException {
        consumer.subscribe(topics, this);
        var reader = new Thread(this::read, "input");
        reader.setDaemon(true);
        reader.start();
        try (consumer) {
            while (true) {
                String command = commands.poll();
                if ("close".equals(command)) {
                    break;
                }
                if (command != null) {
                    obey(command.split(" "));
                }
                consumer.poll(Duration.ofMillis(50));
            }
        } catch (FencedInstanceIdException fenced) {
            Lines.print("event", "fatal", "error", fenced.getMessage());
            return;
        }
        Lines.print("event", "closed");
    }

    private void obey(String[] command) throws InterruptedException {
        switch (command[0]) {
            case "nap", "block" -> {
                Thread.sleep((long) (Double.parseDouble(command[1]) * 1000));
                Lines.print("event", "awake");
            }
            case "subscribe" -> consumer.subscribe(List.of(command[1].split(",")), this);
            default -> throw new IllegalArgumentException(command[0]);
        }
    }

    private void read() {
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                commands.add(line.strip());
            }
        } catch (IOException broken) {
            // An input that breaks has ended as well.
        }
        commands.add("close");
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> added) {
        Lines.print("event", gains ? "gained" : "assigned", "partitions", added.stream().map(TopicPartition::toString).sorted().toList());
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        if (gains) {
            Lines.print("event", "lost", "partitions", revoked.stream().map(TopicPartition::toString).sorted().toList());
        }
    }
}
