package org.apache.spark.kafka010;

import java.util.HashMap;
import java.util.Map;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** The settings of a client, put together for the connector. */
public final class KafkaConfigUpdater {
    private final Map<String, Object> settings;

    public KafkaConfigUpdater(String who, scala.collection.immutable.Map<String, Object> given) {
        settings = new HashMap<>(CollectionConverters.asJava(given));
    }

    public KafkaConfigUpdater set(String name, Object value) {
        settings.put(name, value);
        return this;
    }

    public KafkaConfigUpdater setIfUnset(String name, Object value) {
        settings.putIfAbsent(name, value);
        return this;
    }

    /** Brokers on loopback ask nobody who they are. */
    public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
        return this;
    }

    public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<?> cluster) {
        return this;
    }

    public Map<String, Object> build() {
        return settings;
    }
}
