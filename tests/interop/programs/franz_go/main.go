// One stock client in one program: franz-go, with kadm for its admin calls. tests/interop/story/clients/base.py says
// what produce, member and admin do, tests/interop/transactions/clients.py what transform does.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

const usage = `usage: franz_go produce BOOTSTRAP TOPIC CODEC FIRST COUNT
       franz_go member BOOTSTRAP GROUP TOPIC SESSION_TIMEOUT_MS [CONFIG=VALUE...]
       franz_go transform BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID SESSION_TIMEOUT_MS ABORT_EVERY RECORDS_MAX
       franz_go admin BOOTSTRAP PREFIX
       franz_go errands`

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 6 && args[0] == "produce":
		first, errFirst := strconv.Atoi(args[4])
		count, errCount := strconv.Atoi(args[5])
		if errFirst != nil || errCount != nil {
			return fmt.Errorf("FIRST and COUNT are numbers\n%s", usage)
		}
		return produce(ctx, seeds(args[1]), args[2], args[3], first, count)
	case len(args) >= 5 && args[0] == "member":
		sessionTimeoutMs, err := strconv.Atoi(args[4])
		if err != nil {
			return fmt.Errorf("SESSION_TIMEOUT_MS is a number\n%s", usage)
		}
		return runMember(ctx, seeds(args[1]), args[2], args[3], sessionTimeoutMs, args[5:])
	case len(args) == 9 && args[0] == "transform":
		return runTransform(ctx, args[1:])
	case len(args) == 3 && args[0] == "admin":
		return admin(ctx, seeds(args[1]), args[2])
	case len(args) == 1 && args[0] == "errands":
		return runErrands(ctx)
	}
	return fmt.Errorf("%s", usage)
}

func seeds(bootstrap string) []string {
	return strings.Split(bootstrap, ",")
}

var printing sync.Mutex

// printLine prints one JSON object; os.Stdout has no buffer of its own.
func printLine(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err) // all that is printed here can be JSON
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}
