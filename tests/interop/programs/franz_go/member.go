package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	pollMax   = 100 * time.Millisecond
	leaveMax  = 30 * time.Second
	commitMax = 30 * time.Second
)

// groupMember is one member with franz-go's defaults, so cooperative-sticky. The callbacks of a rebalance come while
// the loop polls, never while it handles what it was given: BlockRebalanceOnPoll.
type groupMember struct {
	topic string

	lock    sync.Mutex
	owned   map[int32]bool
	handled map[int32]kgo.EpochOffset // printed and not yet acknowledged as committed: the offset to read next
}

func runMember(ctx context.Context, seeds []string, group, topic string, sessionTimeoutMs int) error {
	member := &groupMember{topic: topic, owned: map[int32]bool{}, handled: map[int32]kgo.EpochOffset{}}
	sessionTimeout := time.Duration(sessionTimeoutMs) * time.Millisecond
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(sessionTimeout/20),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(member.assigned),
		kgo.OnPartitionsRevoked(member.revoked),
		kgo.OnPartitionsLost(member.lost),
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()

	inputEnds, ended := context.WithCancel(ctx)
	go func() {
		defer ended()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	for inputEnds.Err() == nil {
		member.pollOnce(inputEnds, client)
	}
	leaving, cancel := context.WithTimeout(ctx, leaveMax)
	defer cancel()
	if err := client.LeaveGroupContext(leaving); err != nil {
		return fmt.Errorf("leaving the group: %w", err)
	}
	printLine(map[string]any{"event": "left"})
	return nil
}

func (member *groupMember) pollOnce(ctx context.Context, client *kgo.Client) {
	polling, cancel := context.WithTimeout(ctx, pollMax)
	defer cancel()
	fetches := client.PollFetches(polling)
	defer client.AllowRebalance()
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.Is(failed.Err, context.Canceled) {
			fmt.Fprintf(os.Stderr, "polling partition %d: %v\n", failed.Partition, failed.Err)
		}
	}
	member.lock.Lock()
	defer member.lock.Unlock()
	fetches.EachRecord(func(record *kgo.Record) {
		printLine(map[string]any{
			"event": "record", "partition": record.Partition, "offset": record.Offset,
			"key": string(record.Key), "value": string(record.Value),
		})
		member.handled[record.Partition] = kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset + 1}
	})
	member.commit(client)
}

// commit commits what was handled. What is refused during a rebalance, or lost with a connection, stays for next time.
func (member *groupMember) commit(client *kgo.Client) {
	if len(member.handled) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), commitMax)
	defer cancel()
	offsets := map[string]map[int32]kgo.EpochOffset{member.topic: member.handled}
	client.CommitOffsetsSync(ctx, offsets, func(
		_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error,
	) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "committing:", err)
			for partition := range member.handled {
				member.tellCommit("commit_failed", partition)
			}
			return
		}
		for _, topic := range response.Topics {
			for _, partition := range topic.Partitions {
				member.committed(partition.Partition, kerr.ErrorForCode(partition.ErrorCode))
			}
		}
	})
}

func (member *groupMember) committed(partition int32, err error) {
	switch {
	case err == nil:
		member.tellCommit("committed", partition)
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID):
		// The group went on without this member; whoever owns the partition now reads it again.
	default:
		fmt.Fprintln(os.Stderr, "committing:", err)
		return
	}
	delete(member.handled, partition)
}

func (member *groupMember) tellCommit(event string, partition int32) {
	printLine(map[string]any{"event": event, "partition": partition, "offset": member.handled[partition].Offset})
}

func (member *groupMember) assigned(_ context.Context, client *kgo.Client, added map[string][]int32) {
	member.lock.Lock()
	defer member.lock.Unlock()
	for _, partition := range added[member.topic] {
		member.owned[partition] = true
	}
	_, generation := client.GroupMetadata()
	printLine(map[string]any{"event": "assigned", "generation": generation, "owned": member.ownedNow()})
}

func (member *groupMember) revoked(_ context.Context, client *kgo.Client, gone map[string][]int32) {
	member.lock.Lock()
	defer member.lock.Unlock()
	member.commit(client)
	member.giveUp(gone)
}

func (member *groupMember) lost(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	member.lock.Lock()
	defer member.lock.Unlock()
	member.giveUp(gone)
}

func (member *groupMember) giveUp(gone map[string][]int32) {
	if len(gone[member.topic]) == 0 {
		return // told before each rebalance, when nothing is given up yet
	}
	for _, partition := range gone[member.topic] {
		delete(member.owned, partition)
		delete(member.handled, partition)
	}
	printLine(map[string]any{"event": "revoked", "owned": member.ownedNow()})
}

func (member *groupMember) ownedNow() []int32 {
	owned := make([]int32, 0, len(member.owned))
	for partition := range member.owned {
		owned = append(owned, partition)
	}
	sort.Slice(owned, func(one, other int) bool { return owned[one] < owned[other] })
	return owned
}
