package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	adminRecords = 20
	adminMax     = 90 * time.Second
)

// adminCalls are the calls of kadm on topics, configs, records, groups and the cluster.
type adminCalls struct {
	client *kgo.Client
	kadm   *kadm.Client
	seeds  []string
	topic  string
	group  string
}

func admin(ctx context.Context, seeds []string, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, adminMax)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	calls := &adminCalls{client, kadm.NewClient(client), seeds, prefix + "-topic", prefix + "-group"}
	broker, err := calls.cluster(ctx)
	if err != nil {
		return err
	}
	calls.topics(ctx)
	calls.configs(ctx, broker)
	calls.records(ctx, broker)
	if err := calls.groups(ctx); err != nil {
		return err
	}
	attempt("DeleteTopics", func() error {
		deleted, err := calls.kadm.DeleteTopics(ctx, calls.topic)
		return errors.Join(err, deleted.Error())
	})
	calls.beyond(ctx, prefix)
	return nil
}

// cluster returns the id of one broker.
func (calls *adminCalls) cluster(ctx context.Context) (int32, error) {
	metadata, err := calls.kadm.BrokerMetadata(ctx)
	if err != nil {
		return 0, err
	}
	attempt("BrokerMetadata", func() error {
		return check(metadata.Cluster != "" && len(metadata.Brokers) > 0, "%+v", metadata)
	})
	attempt("ListBrokers", func() error {
		brokers, err := calls.kadm.ListBrokers(ctx)
		return errors.Join(err, check(len(brokers) == len(metadata.Brokers), "%v", brokers))
	})
	attempt("ApiVersions", func() error {
		versions, err := calls.kadm.ApiVersions(ctx)
		if err != nil {
			return err
		}
		for _, each := range versions {
			err = errors.Join(err, each.Err)
		}
		return err
	})
	return metadata.Controller, nil
}

func (calls *adminCalls) topics(ctx context.Context) {
	attempt("ValidateCreateTopics", func() error {
		created, err := calls.kadm.ValidateCreateTopics(ctx, 2, -1, nil, calls.topic)
		return errors.Join(err, created.Error())
	})
	attempt("CreateTopics", func() error {
		created, err := calls.kadm.CreateTopics(
			ctx, 2, -1, map[string]*string{"retention.ms": kadm.StringPtr("3600000")}, calls.topic)
		return errors.Join(err, created.Error(), check(created[calls.topic].NumPartitions == 2, "not 2 partitions"))
	})
	attempt("CreatePartitions", func() error {
		return soon(func() error {
			created, err := calls.kadm.CreatePartitions(ctx, 1, calls.topic)
			return errors.Join(err, created.Error())
		})
	})
	attempt("ValidateUpdatePartitions", func() error {
		updated, err := calls.kadm.ValidateUpdatePartitions(ctx, 4, calls.topic)
		return errors.Join(err, updated.Error())
	})
	attempt("UpdatePartitions", func() error {
		updated, err := calls.kadm.UpdatePartitions(ctx, 4, calls.topic)
		return errors.Join(err, updated.Error())
	})
	attempt("ListTopics", func() error {
		return soon(func() error {
			topics, err := calls.kadm.ListTopics(ctx)
			partitions := len(topics[calls.topic].Partitions)
			return errors.Join(err, check(partitions == 4, "%d partitions", partitions))
		})
	})
	attempt("ElectLeaders", func() error {
		var partitions kadm.TopicsSet
		partitions.Add(calls.topic, 0)
		elected, err := calls.kadm.ElectLeaders(ctx, kadm.ElectPreferredReplica, partitions)
		result := elected[calls.topic][0]
		return errors.Join(err, check(errors.Is(result.Err, kerr.ElectionNotNeeded), "%+v", result))
	})
}

func (calls *adminCalls) configs(ctx context.Context, broker int32) {
	attempt("DescribeTopicConfigs", func() error { return calls.configSoon(ctx, "retention.ms", "3600000") })
	attempt("DescribeBrokerConfigs", func() error {
		configs, err := calls.kadm.DescribeBrokerConfigs(ctx, broker)
		if err != nil {
			return err
		}
		return errors.Join(configs[0].Err, check(len(configs[0].Configs) > 0, "no configs"))
	})
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr("123456")}}
	attempt("ValidateAlterTopicConfigs", func() error {
		altered, err := calls.kadm.ValidateAlterTopicConfigs(ctx, change, calls.topic)
		return alterError(altered, err)
	})
	attempt("AlterTopicConfigs", func() error {
		altered, err := calls.kadm.AlterTopicConfigs(ctx, change, calls.topic)
		return errors.Join(alterError(altered, err), calls.configSoon(ctx, "max.message.bytes", "123456"))
	})
	state := []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("7200000")}}
	attempt("ValidateAlterTopicConfigsState", func() error {
		altered, err := calls.kadm.ValidateAlterTopicConfigsState(ctx, state, calls.topic)
		return alterError(altered, err)
	})
	attempt("AlterTopicConfigsState", func() error {
		altered, err := calls.kadm.AlterTopicConfigsState(ctx, state, calls.topic)
		return errors.Join(alterError(altered, err), calls.configSoon(ctx, "retention.ms", "7200000"))
	})
	attempt("ListConfigResources", func() error {
		resources, err := calls.kadm.ListConfigResources(ctx)
		return errors.Join(err, resources.Err, check(len(resources.Resources) > 0, "none"))
	})
}

func (calls *adminCalls) configSoon(ctx context.Context, name, value string) error {
	return soon(func() error { return calls.checkConfig(ctx, name, value) })
}

func (calls *adminCalls) checkConfig(ctx context.Context, name, value string) error {
	described, err := calls.kadm.DescribeTopicConfigs(ctx, calls.topic)
	if err != nil {
		return err
	}
	config, err := described.On(calls.topic, nil)
	if err != nil {
		return err
	}
	for _, each := range config.Configs {
		if each.Key == name {
			return check(each.MaybeValue() == value, "%s is %s", name, each.MaybeValue())
		}
	}
	return errors.Join(config.Err, check(false, "no config %s", name))
}

func alterError(altered kadm.AlterConfigsResponses, err error) error {
	for _, each := range altered {
		err = errors.Join(err, each.Err)
	}
	return err
}

func (calls *adminCalls) records(ctx context.Context, broker int32) {
	records := make([]*kgo.Record, adminRecords)
	for number := range records {
		records[number] = &kgo.Record{Topic: calls.topic, Value: []byte("v"), Timestamp: time.UnixMilli(int64(1000 + number))}
	}
	attempt("produce", func() error { return calls.client.ProduceSync(ctx, records...).FirstErr() })
	var first kadm.TopicsSet
	first.Add(calls.topic, 0)
	attempt("DescribeProducers", func() error {
		described, err := calls.kadm.DescribeProducers(ctx, first)
		if err != nil {
			return err
		}
		producers := described.SortedProducers()
		return check(len(producers) == 1 && producers[0].LastSequence == adminRecords-1, "%+v", described)
	})
	afterMilli := func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
		return calls.kadm.ListOffsetsAfterMilli(ctx, 1005, topics...)
	}
	for _, listing := range []struct {
		name   string
		offset int64
		list   func(context.Context, ...string) (kadm.ListedOffsets, error)
	}{
		{"ListStartOffsets", 0, calls.kadm.ListStartOffsets},
		{"ListEndOffsets", adminRecords, calls.kadm.ListEndOffsets},
		{"ListCommittedOffsets", adminRecords, calls.kadm.ListCommittedOffsets},
		{"ListOffsetsAfterMilli", 5, afterMilli},
		{"ListMaxTimestampOffsets", adminRecords - 1, calls.kadm.ListMaxTimestampOffsets},
		{"ListLocalLogStartOffsets", 0, calls.kadm.ListLocalLogStartOffsets},
		{"ListLatestRemoteOffsets", -1, calls.kadm.ListLatestRemoteOffsets},
	} {
		attempt(listing.name, func() error {
			listed, err := listing.list(ctx, calls.topic)
			found, _ := listed.Lookup(calls.topic, 0)
			return errors.Join(err, listed.Error(), check(found.Offset == listing.offset, "%+v", found))
		})
	}
	attempt("OffsetForLeaderEpoch", func() error {
		listed, err := calls.kadm.ListEndOffsets(ctx, calls.topic)
		if err != nil {
			return err
		}
		last, _ := listed.Lookup(calls.topic, 0)
		var asked kadm.OffsetForLeaderEpochRequest
		asked.Add(calls.topic, 0, last.LeaderEpoch)
		ends, err := calls.kadm.OffsetForLeaderEpoch(ctx, asked)
		end := ends[calls.topic][0]
		return errors.Join(err, end.Err, check(end.EndOffset == adminRecords, "%+v", end))
	})
	attempt("DescribeBrokerLogDirs", func() error {
		folders, err := calls.kadm.DescribeBrokerLogDirs(ctx, broker, nil)
		return errors.Join(err, folders.Error(), check(len(folders) > 0, "none"))
	})
	attempt("DescribeAllLogDirs", func() error {
		brokers, err := calls.kadm.DescribeAllLogDirs(ctx, first)
		if err != nil {
			return err
		}
		found := false
		brokers.Each(func(folder kadm.DescribedLogDir) {
			err = errors.Join(err, folder.Err)
			found = found || len(folder.Topics[calls.topic]) > 0
		})
		return errors.Join(err, check(found, "the partition is nowhere"))
	})
	attempt("DeleteRecords", func() error {
		var offsets kadm.Offsets
		offsets.AddOffset(calls.topic, 0, 4, -1)
		deleted, err := calls.kadm.DeleteRecords(ctx, offsets)
		result, _ := deleted.Lookup(calls.topic, 0)
		return errors.Join(err, deleted.Error(), check(result.LowWatermark == 4, "%+v", result))
	})
}

func (calls *adminCalls) groups(ctx context.Context) error {
	attempt("FindGroupCoordinators", func() error {
		return calls.kadm.FindGroupCoordinators(ctx, calls.group).Error()
	})
	attempt("CommitOffsets", func() error {
		var offsets kadm.Offsets
		offsets.AddOffset(calls.topic, 0, 7, -1)
		return calls.kadm.CommitAllOffsets(ctx, calls.group, offsets)
	})
	attempt("FetchOffsets", func() error { return calls.checkCommitted(ctx, 7) })
	attempt("FetchManyOffsets", func() error {
		return calls.kadm.FetchManyOffsets(ctx, calls.group).Error()
	})
	attempt("FetchOffsetsForTopics", func() error {
		fetched, err := calls.kadm.FetchOffsetsForTopics(ctx, calls.group, calls.topic)
		return errors.Join(err, fetched.Error(), check(len(fetched[calls.topic]) == 4, "%+v", fetched))
	})
	topicID, err := calls.topicID(ctx)
	if err != nil {
		return err
	}
	attempt("CommitOffsetsByID", func() error {
		offsets := kadm.OffsetsByID{topicID: {0: {Topic: calls.topic, TopicID: topicID, At: 8, LeaderEpoch: -1}}}
		return errors.Join(calls.kadm.CommitAllOffsetsByID(ctx, calls.group, offsets), calls.checkCommitted(ctx, 8))
	})
	attempt("FetchOffsetsByID", func() error {
		fetched, err := calls.kadm.FetchOffsetsByID(ctx, calls.group)
		return errors.Join(err, fetched.Error(), check(fetched[topicID][0].At == 8, "%+v", fetched))
	})
	if err := calls.groupWithMember(ctx); err != nil {
		return err
	}
	attempt("DeleteOffsets", func() error {
		var first kadm.TopicsSet
		first.Add(calls.topic, 0)
		deleted, err := calls.kadm.DeleteOffsets(ctx, calls.group, first)
		return errors.Join(err, deleted.Error())
	})
	attempt("CommitOffsets again", func() error {
		var offsets kadm.Offsets
		offsets.AddOffset(calls.topic, 0, 7, -1)
		return calls.kadm.CommitAllOffsets(ctx, calls.group, offsets)
	})
	attempt("DeleteGroups", func() error {
		deleted, err := calls.kadm.DeleteGroups(ctx, calls.group)
		return errors.Join(err, deleted.Error())
	})
	return nil
}

func (calls *adminCalls) topicID(ctx context.Context) (kadm.TopicID, error) {
	topics, err := calls.kadm.ListTopics(ctx, calls.topic)
	return topics[calls.topic].ID, err
}

func (calls *adminCalls) checkCommitted(ctx context.Context, offset int64) error {
	fetched, err := calls.kadm.FetchOffsets(ctx, calls.group)
	found, _ := fetched.Lookup(calls.topic, 0)
	return errors.Join(err, fetched.Error(), check(found.At == offset, "%+v", found))
}

// groupWithMember asks about the group while one static member owns all its partitions.
func (calls *adminCalls) groupWithMember(ctx context.Context) error {
	joined := make(chan struct{}, 1)
	member, err := kgo.NewClient(
		kgo.SeedBrokers(calls.seeds...), kgo.ConsumerGroup(calls.group), kgo.ConsumeTopics(calls.topic),
		kgo.InstanceID("first"), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) {
			select {
			case joined <- struct{}{}:
			default:
			}
		}))
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-joined:
	case <-ctx.Done():
		return ctx.Err()
	}
	attempt("ListGroups", func() error {
		groups, err := calls.kadm.ListGroups(ctx)
		return errors.Join(err, check(groups[calls.group].State == "Stable", "%+v", groups))
	})
	attempt("ListGroupsByType", func() error {
		groups, err := calls.kadm.ListGroupsByType(ctx, []string{"classic"}, "Stable")
		return errors.Join(err, check(groups[calls.group].State == "Stable", "%+v", groups))
	})
	attempt("DescribeGroups", func() error {
		groups, err := calls.kadm.DescribeGroups(ctx, calls.group)
		if err := errors.Join(err, groups.Error()); err != nil {
			return err
		}
		group := groups[calls.group]
		return check(len(group.Members) == 1 && *group.Members[0].InstanceID == "first", "%+v", group)
	})
	attempt("Lag", func() error {
		lags, err := calls.kadm.Lag(ctx, calls.group)
		if err := errors.Join(err, lags.Error()); err != nil {
			return err
		}
		lag, _ := lags[calls.group].Lag.Lookup(calls.topic, 0)
		return check(lag.Lag == adminRecords-8, "%+v", lag)
	})
	attempt("LeaveGroup", func() error {
		left, err := calls.kadm.LeaveGroup(ctx, kadm.LeaveGroup(calls.group).InstanceIDs("first"))
		return errors.Join(err, left.Error())
	})
	return nil
}

// beyond tries calls about what a broker may do without, but not leave the client waiting for.
func (calls *adminCalls) beyond(ctx context.Context, prefix string) {
	attempt("DescribeConsumerGroups of KIP-848", func() error {
		groups, err := calls.kadm.DescribeConsumerGroups(ctx, prefix+"-consumers")
		return errors.Join(err, groups.Error())
	})
	attempt("DescribeShareGroups", func() error {
		groups, err := calls.kadm.DescribeShareGroups(ctx, prefix+"-share")
		return errors.Join(err, groups.Error())
	})
	attempt("DescribeACLs", func() error {
		any := kadm.NewACLs().AnyResource().ResourcePatternType(kadm.ACLPatternAny).Operations(kadm.OpAny).
			Allow().AllowHosts().Deny().DenyHosts()
		described, err := calls.kadm.DescribeACLs(ctx, any)
		for _, each := range described {
			err = errors.Join(err, each.Err)
		}
		return err
	})
	attempt("DescribeClientQuotas", func() error {
		_, err := calls.kadm.DescribeClientQuotas(ctx, false, []kadm.DescribeClientQuotaComponent{
			{Type: "user", MatchType: kmsg.QuotasMatchTypeAny}})
		return err
	})
	attempt("DescribeUserSCRAMs", func() error {
		_, err := calls.kadm.DescribeUserSCRAMs(ctx)
		return err
	})
	attempt("DescribeDelegationTokens", func() error {
		_, err := calls.kadm.DescribeDelegationTokens(ctx)
		return err
	})
	attempt("ListTransactions", func() error {
		_, err := calls.kadm.ListTransactions(ctx, nil, nil)
		return err
	})
	attempt("DescribeTransactions", func() error {
		described, err := calls.kadm.DescribeTransactions(ctx, prefix+"-transaction")
		if err != nil {
			return err
		}
		_, err = described.On(prefix+"-transaction", nil)
		return err
	})
	attempt("ListPartitionReassignments", func() error {
		var first kadm.TopicsSet
		first.Add(calls.topic, 0)
		_, err := calls.kadm.ListPartitionReassignments(ctx, first)
		return err
	})
	attempt("UpdateFeatures", func() error {
		_, err := calls.kadm.UpdateFeatures(ctx, true, kadm.FeatureUpdate{
			Feature: "kraft.version", MaxVersionLevel: 1, UpgradeType: 1})
		return err
	})
}
