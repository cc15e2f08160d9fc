package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

const soonMax = 30 * time.Second

var errNotYet = errors.New("not what was expected")

// attempt tries an admin call and prints a line about it.
func attempt(name string, call func() error) {
	line := map[string]any{"call": name, "ok": true}
	if err := call(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		line["ok"], line["error"] = false, errorName(err)
	}
	printLine(line)
}

func errorName(err error) string {
	var kafkaError *kerr.Error
	if errors.As(err, &kafkaError) {
		return kafkaError.Message
	}
	return err.Error()
}

// soon waits for what one broker has acknowledged and another may hear of a moment later.
func soon(ask func() error) error {
	deadline := time.Now().Add(soonMax)
	err := ask()
	for isEarly(err) && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond) // between two questions
		err = ask()
	}
	return err
}

func isEarly(err error) bool {
	return errors.Is(err, errNotYet) || errors.Is(err, kerr.UnknownTopicOrPartition)
}

func check(fact bool, format string, arguments ...any) error {
	if fact {
		return nil
	}
	return fmt.Errorf("%w: "+format, append([]any{errNotYet}, arguments...)...)
}
