package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const errandMax = 20 * time.Second

// runErrands runs short lives of clients in one process: see tests/interop/security/errands.py. SETTINGS is a file of
// JSON, with librdkafka's names.
func runErrands(ctx context.Context) error {
	errands := bufio.NewScanner(os.Stdin)
	for errands.Scan() {
		value, err := runErrand(ctx, strings.Split(errands.Text(), "\t"))
		if err != nil {
			printLine(map[string]any{"error": errorName(err), "message": err.Error()})
			continue
		}
		printLine(map[string]any{"value": value})
	}
	return errands.Err()
}

func runErrand(ctx context.Context, errand []string) (string, error) {
	text, err := os.ReadFile(errand[3])
	if err != nil {
		return "", err
	}
	settings := map[string]string{}
	if err := json.Unmarshal(text, &settings); err != nil {
		return "", err
	}
	options, err := security(settings)
	if err != nil {
		return "", err
	}
	options = append(options, kgo.SeedBrokers(seeds(settings["bootstrap.servers"])...))
	ctx, cancel := context.WithTimeout(ctx, errandMax)
	defer cancel()
	if errand[0] == "produce" {
		return errand[2], produceOne(ctx, options, errand[1], errand[2])
	}
	return consumeOne(ctx, options, errand[1], errand[2])
}

// reached is a client that is let in: others hear of a refusal only in their logs, and try again.
func reached(ctx context.Context, options []kgo.Opt) (*kgo.Client, error) {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	if err := client.Ping(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

func produceOne(ctx context.Context, options []kgo.Opt, topic, value string) error {
	client, err := reached(ctx, append(options, kgo.DefaultProduceTopic(topic)))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr()
}

func consumeOne(ctx context.Context, options []kgo.Opt, topic, group string) (string, error) {
	client, err := reached(ctx, append(options,
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	))
	if err != nil {
		return "", err
	}
	defer client.Close()
	fetches := client.PollRecords(ctx, 1)
	for _, failed := range fetches.Errors() {
		return "", failed.Err
	}
	records := fetches.Records()
	if len(records) == 0 {
		return "", errors.New("no record")
	}
	if err := client.CommitRecords(ctx, records...); err != nil {
		return "", fmt.Errorf("committing: %w", err)
	}
	return string(records[0].Value), client.LeaveGroupContext(ctx)
}
