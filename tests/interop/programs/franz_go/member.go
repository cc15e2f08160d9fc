package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
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
	lock    sync.Mutex
	owned   map[int]bool
	handled map[string]map[int32]kgo.EpochOffset // printed and not yet acknowledged as committed: the offset to read next
}

func runMember(
	ctx context.Context, seeds []string, group, topic string, sessionTimeoutMs int, configs []string,
) error {
	member := &groupMember{owned: map[int]bool{}, handled: map[string]map[int32]kgo.EpochOffset{}}
	more, err := optionsOf(configs)
	if err != nil {
		return err
	}
	if strings.HasPrefix(topic, "^") {
		more = append(more, kgo.ConsumeRegex())
	}
	sessionTimeout := time.Duration(sessionTimeoutMs) * time.Millisecond
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(sessionTimeout / 20),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(member.assigned),
		kgo.OnPartitionsRevoked(member.revoked),
		kgo.OnPartitionsLost(member.lost),
	}, more...)...)
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

// optionsOf translates the names of Kafka's Java client, and librdkafka's for TLS and SASL.
func optionsOf(configs []string) ([]kgo.Opt, error) {
	var options []kgo.Opt
	secured := map[string]string{}
	for _, config := range configs {
		switch name, value, _ := strings.Cut(config, "="); {
		case name == "group.protocol" && value == "consumer":
			options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
		case name == "group.protocol" && value == "classic":
		case name == "group.instance.id":
			options = append(options, kgo.InstanceID(value))
		case name == "client.id":
			options = append(options, kgo.ClientID(value))
		case name == "security.protocol", strings.HasPrefix(name, "ssl."), strings.HasPrefix(name, "sasl."):
			secured[name] = value
		default:
			return nil, fmt.Errorf("no member can be told %s", config)
		}
	}
	more, err := security(secured)
	return append(options, more...), err
}

// place is the number by which a partition goes: see tests/interop/story/clients/base.py.
func place(topic string, partition int32) int {
	dot := strings.LastIndex(topic, ".")
	if dot < 0 {
		return int(partition)
	}
	number, err := strconv.Atoi(topic[dot+1:])
	if err != nil {
		panic(err) // topics of the story have no other dots
	}
	return 1000*number + int(partition)
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
			"event": "record", "partition": place(record.Topic, record.Partition), "offset": record.Offset,
			"key": string(record.Key), "value": string(record.Value),
		})
		if member.handled[record.Topic] == nil {
			member.handled[record.Topic] = map[int32]kgo.EpochOffset{}
		}
		member.handled[record.Topic][record.Partition] = kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset + 1}
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
	client.CommitOffsetsSync(ctx, member.handled, func(
		_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error,
	) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "committing:", err)
			for topic, partitions := range member.handled {
				for partition := range partitions {
					member.tellCommit("commit_failed", topic, partition)
				}
			}
			return
		}
		for _, topic := range response.Topics {
			for _, partition := range topic.Partitions {
				member.committed(topic.Topic, partition.Partition, kerr.ErrorForCode(partition.ErrorCode))
			}
		}
	})
}

func (member *groupMember) committed(topic string, partition int32, err error) {
	switch {
	case err == nil:
		member.tellCommit("committed", topic, partition)
	case errors.Is(err, kerr.IllegalGeneration) && member.owned[place(topic, partition)]:
		// A cooperative rebalance leaves it the partition, and does not have it read again: to be committed in the
		// new generation.
		return
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID),
		errors.Is(err, kerr.FencedMemberEpoch):
		// The group went on without this member; whoever owns the partition now reads it again.
	default:
		fmt.Fprintln(os.Stderr, "committing:", err)
		return
	}
	member.forget(topic, partition)
}

func (member *groupMember) forget(topic string, partition int32) {
	delete(member.handled[topic], partition)
	if len(member.handled[topic]) == 0 {
		delete(member.handled, topic)
	}
}

func (member *groupMember) tellCommit(event, topic string, partition int32) {
	offset := member.handled[topic][partition].Offset
	printLine(map[string]any{"event": event, "partition": place(topic, partition), "offset": offset})
}

func (member *groupMember) assigned(_ context.Context, client *kgo.Client, added map[string][]int32) {
	member.lock.Lock()
	defer member.lock.Unlock()
	for topic, partitions := range added {
		for _, partition := range partitions {
			member.owned[place(topic, partition)] = true
		}
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
	if len(gone) == 0 {
		return // told before each rebalance, when nothing is given up yet
	}
	for topic, partitions := range gone {
		for _, partition := range partitions {
			delete(member.owned, place(topic, partition))
			member.forget(topic, partition)
		}
	}
	printLine(map[string]any{"event": "revoked", "owned": member.ownedNow()})
}

func (member *groupMember) ownedNow() []int {
	owned := make([]int, 0, len(member.owned))
	for partition := range member.owned {
		owned = append(owned, partition)
	}
	sort.Slice(owned, func(one, other int) bool { return owned[one] < owned[other] })
	return owned
}
