// A broker of franz-go's kfake, as the peers of muster's benchmarks have it: one node on loopback, everything
// in memory, topics made at its start. Its first line names its port.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	topics := flag.String("topics", "", "name:partitions,...")
	sessionMin := flag.Duration("session-min", 6*time.Second, "group.min.session.timeout.ms")
	flag.Parse()
	options := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.GroupMinSessionTimeout(*sessionMin),
		kfake.GroupMaxSessionTimeout(30 * time.Minute), // as Apache Kafka's
	}
	for _, topic := range strings.FieldsFunc(*topics, func(each rune) bool { return each == ',' }) {
		name, count, _ := strings.Cut(topic, ":")
		partitions, err := strconv.ParseInt(count, 10, 32)
		if err != nil {
			fail(err)
		}
		options = append(options, kfake.SeedTopics(int32(partitions), name))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		fail(err)
	}
	defer cluster.Close()
	fmt.Printf("ready on %s\n", cluster.ListenAddrs()[0])
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
