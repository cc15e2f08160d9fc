package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	transformPartitions = 3
	// Fetches that wait at the end, and metadata that is young, hold up the session when it goes back.
	transformWaitMax = 50 * time.Millisecond
	// A transaction that a killed worker left open is over after that: the one that takes its place ends it when it
	// first writes, and gets no offsets before. Longer than it takes until another broker has what a dead one had.
	transactionTimeout = 20 * time.Second
)

// transformer works exactly once, with franz-go's session for that: see tests/interop/transactions/clients.py.
type transformer struct {
	session    *kgo.GroupTransactSession
	target     string
	abortEvery int
	recordsMax int
	begun      int
}

func runTransform(ctx context.Context, args []string) error {
	var numbers [3]int
	for index, text := range args[5:] {
		number, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("SESSION_TIMEOUT_MS, ABORT_EVERY and RECORDS_MAX are numbers\n%s", usage)
		}
		numbers[index] = number
	}
	sessionTimeout := time.Duration(numbers[0]) * time.Millisecond
	// It tells what it owns; it commits nothing.
	member := &groupMember{owned: map[int]bool{}, handled: map[string]map[int32]kgo.EpochOffset{}}
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(seeds(args[0])...),
		kgo.ConsumerGroup(args[1]),
		kgo.ConsumeTopics(args[2]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(transformWaitMax),
		kgo.MetadataMinAge(transformWaitMax),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(sessionTimeout/10),
		kgo.OnPartitionsAssigned(member.assigned),
		kgo.OnPartitionsRevoked(member.lost),
		kgo.OnPartitionsLost(member.lost),
		kgo.TransactionalID(args[4]),
		kgo.TransactionTimeout(transactionTimeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer session.Close()

	inputEnds, ended := context.WithCancel(ctx)
	go func() {
		defer ended()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	working := &transformer{
		session: session, target: args[3], abortEvery: numbers[1], recordsMax: numbers[2],
	}
	for inputEnds.Err() == nil {
		if err := working.pollOnce(ctx); err != nil {
			return err
		}
	}
	leaving, cancel := context.WithTimeout(ctx, leaveMax)
	defer cancel()
	if err := session.Client().LeaveGroupContext(leaving); err != nil {
		return fmt.Errorf("leaving the group: %w", err)
	}
	printLine(map[string]any{"event": "left"})
	return nil
}

func (working *transformer) pollOnce(ctx context.Context) error {
	polling, cancel := context.WithTimeout(ctx, pollMax)
	defer cancel()
	fetches := working.session.PollRecords(polling, working.recordsMax)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			fmt.Fprintf(os.Stderr, "polling partition %d: %v\n", failed.Partition, failed.Err)
		}
	}
	if records := fetches.Records(); len(records) > 0 {
		return working.transaction(ctx, records)
	}
	return nil
}

// transaction commits the results, or aborts them on purpose; the session goes back by itself. Its errors are for good.
func (working *transformer) transaction(ctx context.Context, records []*kgo.Record) error {
	working.begun++
	kept := working.abortEvery == 0 || working.begun%working.abortEvery != 0
	tellStep("began", len(records))
	if err := working.session.Begin(); err != nil {
		return fmt.Errorf("beginning: %w", err)
	}
	results := make([]*kgo.Record, len(records))
	for index, record := range records {
		number, err := strconv.Atoi(string(record.Value))
		if err != nil {
			return err
		}
		result := kgo.KeyStringRecord(fmt.Sprintf("k%d", number), fmt.Sprintf("%d %d", number, number*number))
		result.Topic = working.target
		result.Partition = int32(number / transformPartitions % transformPartitions)
		results[index] = result
	}
	err := working.session.ProduceSync(ctx, results...).FirstErr()
	if err != nil {
		fmt.Fprintln(os.Stderr, "producing:", err)
	} else {
		tellStep("sent", len(records))
	}
	committed, endErr := working.session.End(ctx, kgo.TransactionEndTry(kept && err == nil))
	switch {
	case endErr != nil:
		return fmt.Errorf("ending: %w", endErr)
	case committed:
		tellStep("committed", len(records))
	case kept || err != nil:
		tellStep("failed", 0)
	default:
		tellStep("aborted", len(records))
	}
	return nil
}

func tellStep(step string, records int) {
	printLine(map[string]any{"event": "transaction", "step": step, "records": records})
}
