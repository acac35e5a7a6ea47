// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command netprobe measures a network path between two of its processes: throughput, request and response, connections, and packets. It is
// static, so that it runs in any container and namespace.
//
//	netprobe serve 7000 [NUMBER OF PORTS]
//	netprobe stream|rr|crr|packets 10.16.0.7:7000 5s
//
// The client prints a Result as JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netprobe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 1 && args[0] == "serve" {
		return serve(args[1], append(args, "1")[2])
	}
	if len(args) != 3 {
		return errors.New("usage: netprobe serve PORT [NUMBER] | netprobe stream|rr|crr|packets ADDRESS:PORT DURATION")
	}
	d, err := time.ParseDuration(args[2])
	if err != nil {
		return fmt.Errorf("the duration: %w", err)
	}
	measure, known := measurements[args[0]]
	if !known {
		return fmt.Errorf("no measurement %q", args[0])
	}
	result, err := measure(args[1], d)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
