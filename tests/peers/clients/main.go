// A member of a group, a copier in transactions, or an admin: franz-go, in one process for each.
// tests/support/foreign/processes.py has the other end, and says what each prints.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	session   = 2 * time.Second
	heartbeat = 300 * time.Millisecond
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	what, servers, rest := os.Args[1], os.Args[2], os.Args[3:]
	if what != "admin" {
		go func() {
			for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			}
			stop()
		}()
	}
	var err error
	switch what {
	case "member":
		err = member(ctx, servers, rest[0], rest[1])
	case "copy":
		err = copier(ctx, servers, rest[0], rest[1], rest[2], rest[3])
	case "admin":
		err = admin(ctx, servers, rest[0], rest[1])
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func grouped(servers, group, topic string, more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(servers),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(heartbeat),
		kgo.RebalanceTimeout(2 * session),
		kgo.FetchMaxWait(50 * time.Millisecond),
	}, more...)
}

// held prints all partitions that a member has, whenever they change.
type held struct {
	sync.Mutex
	partitions map[int32]bool
}

func (h *held) change(changed map[string][]int32, has bool) {
	h.Lock()
	defer h.Unlock()
	for _, partitions := range changed {
		for _, p := range partitions {
			if has {
				h.partitions[p] = true
			} else {
				delete(h.partitions, p)
			}
		}
	}
	numbers := make([]int, 0, len(h.partitions))
	for p := range h.partitions {
		numbers = append(numbers, int(p))
	}
	sort.Ints(numbers)
	words := make([]string, len(numbers))
	for i, p := range numbers {
		words[i] = strconv.Itoa(p)
	}
	fmt.Println("holds", strings.Join(words, " "))
}

func member(ctx context.Context, servers, group, topic string) error {
	mine := &held{partitions: map[int32]bool{}}
	gained := func(_ context.Context, _ *kgo.Client, p map[string][]int32) { mine.change(p, true) }
	lost := func(_ context.Context, _ *kgo.Client, p map[string][]int32) { mine.change(p, false) }
	client, err := kgo.NewClient(grouped(servers, group, topic,
		kgo.DisableAutoCommit(),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.OnPartitionsAssigned(gained),
		kgo.OnPartitionsRevoked(lost),
		kgo.OnPartitionsLost(lost),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, 100)
		records := fetches.Records()
		for _, r := range records {
			fmt.Println("read", r.Partition, r.Offset, string(r.Value))
		}
		// A commit in the middle of a rebalance is refused, and the next owner reads these again.
		_ = client.CommitRecords(ctx, records...)
	}
	return nil
}

func copier(ctx context.Context, servers, group, from, to, id string) error {
	client, err := kgo.NewGroupTransactSession(grouped(servers, group, from,
		kgo.TransactionalID(id),
		// It asks for the group's offsets before it takes its id over, and so waits until what a killed one
		// has left open is aborted.
		kgo.TransactionTimeout(session),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	copied := 0
	for ctx.Err() == nil {
		records := client.PollRecords(ctx, 20).Records()
		if len(records) == 0 {
			continue
		}
		for err := client.Begin(); err != nil; err = client.Begin() {
			// What a killed one has left open is being aborted.
			if !errors.Is(err, kerr.ConcurrentTransactions) {
				return err
			}
			time.Sleep(heartbeat)
		}
		var failed kgo.FirstErrPromise
		for _, r := range records {
			client.Produce(ctx, &kgo.Record{Topic: to, Partition: r.Partition, Value: r.Value}, failed.Promise())
		}
		committed, err := client.End(ctx, kgo.TransactionEndTry(failed.Err() == nil))
		if err != nil {
			return err
		}
		if committed {
			copied += len(records)
			fmt.Println("copied", copied)
		}
	}
	return nil
}

func admin(ctx context.Context, servers, topic, group string) error {
	client, err := kadm.NewOptClient(kgo.SeedBrokers(servers))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.CreateTopic(ctx, 3, 1, nil, topic+"-new"); err != nil {
		return err
	}
	partitions := 0
	for tries := 0; partitions == 0 && tries < 100; tries++ { // Kafka answers before its metadata have the topic
		topics, err := client.ListTopics(ctx, topic+"-new")
		if err != nil {
			return err
		}
		partitions = len(topics[topic+"-new"].Partitions)
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Println("partitions", partitions)
	groups, err := client.DescribeGroups(ctx, group)
	if err != nil {
		return err
	}
	fmt.Println("group", groups[group].State, len(groups[group].Members))
	before := kadm.Offsets{}
	before.AddOffset(topic, 0, 3, -1)
	deleted, err := client.DeleteRecords(ctx, before)
	if err != nil {
		return err
	}
	found, _ := deleted.Lookup(topic, 0)
	fmt.Println("start", found.LowWatermark)
	return found.Err
}
