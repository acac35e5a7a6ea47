// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command netprobe measures a network path between two of its processes: throughput, request and response, connections, and packets. It is
// static, so that it runs in any container and namespace.
//
//	netprobe serve 7000 [NUMBER OF PORTS]
//	netprobe stream|rr|crr|packets|full 10.16.0.7:7000 5s
//	netprobe steady 10.16.0.7:7000 13s 20000000
//	netprobe steady-full 10.16.0.7:7000 13s
//	netprobe features eth0
//
// Package measure of internal/netprobe makes the measurements. steady sends UDP at a rate in bit/s, and steady-full as much as TCP passes. The client prints a
// Result as JSON; features prints the offloads of an interface that are on. With the variable NETPROBE_SEGMENTATION, UDP packets of steady are sent and received several at a time.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/safchain/ethtool"

	"github.com/kiln-net/kiln/internal/netprobe/measure"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netprobe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	segmentation := os.Getenv("NETPROBE_SEGMENTATION") != ""
	if len(args) > 1 && args[0] == "serve" {
		return serve(args[1], append(args, "1")[2], segmentation)
	}
	if len(args) == 2 && args[0] == "features" {
		return features(args[1])
	}
	if steady := len(args) == 4 && args[0] == measure.Steady; len(args) != 3 && !steady {
		return errors.New("usage: netprobe serve PORT [NUMBER] | netprobe stream|rr|crr|packets|full|steady-full ADDRESS:PORT DURATION | " +
			"netprobe steady ADDRESS:PORT DURATION RATE | netprobe features INTERFACE")
	}
	d, err := time.ParseDuration(args[2])
	if err != nil {
		return fmt.Errorf("the duration: %w", err)
	}
	m := measure.Measurement{Kind: args[0], Address: args[1], Duration: d, Segmentation: segmentation}
	if len(args) == 4 {
		if m.Rate, err = strconv.ParseFloat(args[3], 64); err != nil {
			return fmt.Errorf("the rate %q is not a number of bit/s", args[3])
		}
	}
	result, err := m.Run()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// serve serves measurements on consecutive ports until one fails.
func serve(port, number string, segmentation bool) error {
	first, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("the port: %w", err)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return fmt.Errorf("the number of ports: %w", err)
	}
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf(":%d", first+i))
	}
	return (&measure.Server{Segmentation: segmentation}).Serve(context.Background(), addresses...)
}

// offloads are the features (ethtool(8)) that let a large segment without a checksum pass between two interfaces of a host.
var offloads = []string{"tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "rx-gro"}

func features(name string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	all, err := tool.Features(name)
	if err != nil {
		return fmt.Errorf("read the features of %s: %w", name, err)
	}
	on := []string{}
	for _, name := range offloads {
		if all[name] {
			on = append(on, name)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(on)
}
