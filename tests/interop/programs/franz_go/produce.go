package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// produce returns once all records are acknowledged.
func produce(ctx context.Context, seeds []string, topic, codec string, first, count int) error {
	compression, known := codecs[codec]
	if !known {
		return fmt.Errorf("no codec %q", codec)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(compression))
	if err != nil {
		return err
	}
	defer client.Close()
	records := make([]*kgo.Record, count)
	for index := range records {
		number := first + index
		records[index] = kgo.KeyStringRecord(fmt.Sprintf("k%d", number), fmt.Sprintf("%s-%d", codec, number))
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}
