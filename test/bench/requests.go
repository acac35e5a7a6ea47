// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// writes are counts of requests that change something, by verb and resource: "PATCH pods", "PATCH subnets/status". Those that the
// server refused are there with its code: "POST ips, 409".
type writes map[string]int

// requestTotal is a sample of the API server's counter of requests.
var requestTotal = regexp.MustCompile(`^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)

var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// writes asks the API server how many writes it has seen, Leases left out: their number depends on time, not on pods.
func (w *world) writes(ctx context.Context) (writes, error) {
	body, err := w.clients.RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	defer body.Close()
	seen := writes{}
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		match := requestTotal.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		labels := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(match[1], -1) {
			labels[l[1]] = l[2]
		}
		n, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			return nil, fmt.Errorf("read the API server's metrics: %w", err)
		}
		switch labels["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE":
			if resource := labels["resource"]; resource != "" && resource != "leases" {
				key := labels["verb"] + " " + strings.TrimSuffix(resource+"/"+labels["subresource"], "/")
				if code := labels["code"]; !strings.HasPrefix(code, "2") {
					key += ", " + code
				}
				seen[key] += int(n)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return seen, nil
}

// since is what came on top of an earlier count.
func (s writes) since(before writes) writes {
	more := writes{}
	for key, n := range s {
		if n > before[key] {
			more[key] = n - before[key]
		}
	}
	return more
}

func (s writes) total() int {
	sum := 0
	for _, n := range s {
		sum += n
	}
	return sum
}

// quiet is how long nothing is written once everything has settled; the status of subnets is written at most once in a second.
const quiet = 2500 * time.Millisecond

// settle waits until nobody writes any more and returns what was written by then.
func (w *world) settle(ctx context.Context) (writes, error) {
	last, err := w.writes(ctx)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(quiet):
		}
		var next writes
		if next, err = w.writes(ctx); maps.Equal(next, last) {
			return last, err
		}
		last = next
	}
	return nil, err
}
