// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// requests counts requests by verb and resource: "PATCH pods", "PATCH subnets/status", "LIST ips". The key of failed requests
// includes the HTTP status code: "POST ips, 409".
type requests map[string]int

// served holds counts of the requests that the API server has served.
type served struct {
	// writes are requests that change something; lists read all objects of a kind, also at the start of a watch.
	writes, lists requests
	// policies is the total time that requests spent in the admission policies.
	policies time.Duration
}

// Samples of the API server's counters of requests, of watches that begin with a list, and of the time of admission plugins.
var (
	requestTotal = regexp.MustCompile(`^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)
	watchLists   = regexp.MustCompile(`^apiserver_watch_list_duration_seconds_count\{(.*)\} ([0-9.e+]+)$`)
	pluginTime   = regexp.MustCompile(`^apiserver_admission_controller_admission_duration_seconds_sum\{(.*)\} ([0-9.e+-]+)$`)
	labelValue   = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// apart are kinds whose requests depend on time and not on pods: Leases are renewed, and the API server itself sometimes lists
// limits when a pod is created.
var apart = []string{"leases", "limitranges", "resourcequotas"}

// served reads the counters from the API server's metrics.
func (w *world) served(ctx context.Context) (served, error) {
	seen := served{writes: requests{}, lists: requests{}}
	body, err := w.clients.RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").Stream(ctx)
	if err != nil {
		return seen, fmt.Errorf("read the API server's metrics: %w", err)
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "apiserver_") {
			continue
		}
		if match := requestTotal.FindStringSubmatch(lines.Text()); match != nil {
			err = seen.count(labelsOf(match[1]), match[2])
		} else if match := watchLists.FindStringSubmatch(lines.Text()); match != nil {
			if resource := labelsOf(match[1])["resource"]; !slices.Contains(apart, resource) {
				err = seen.lists.count("WATCH "+resource, match[2])
			}
		} else if match := pluginTime.FindStringSubmatch(lines.Text()); match != nil && labelsOf(match[1])["name"] == "ValidatingAdmissionPolicy" {
			var spent float64
			spent, err = strconv.ParseFloat(match[2], 64)
			seen.policies += time.Duration(spent * float64(time.Second))
		}
		if err != nil {
			return seen, err
		}
	}
	if err := lines.Err(); err != nil {
		return seen, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return seen, nil
}

// addPolicies adds the time per pod of all requests in the admission policies. It is wall time, so it shows the cost only for pods
// one at a time: parallel requests also wait for the CPU.
func (b *bench) addPolicies(ctx context.Context, scenario string, n int, before served) error {
	after, err := b.world.served(ctx)
	b.add(scenario, "admission policies per pod, one at a time", "ms", milliseconds(after.policies-before.policies)/float64(n))
	return err
}

func labelsOf(text string) map[string]string {
	labels := map[string]string{}
	for _, l := range labelValue.FindAllStringSubmatch(text, -1) {
		labels[l[1]] = l[2]
	}
	return labels
}

func (s served) count(labels map[string]string, value string) error {
	resource := labels["resource"]
	if resource == "" || slices.Contains(apart, resource) {
		return nil
	}
	key := labels["verb"] + " " + strings.TrimSuffix(resource+"/"+labels["subresource"], "/")
	if code := labels["code"]; !strings.HasPrefix(code, "2") {
		key += ", " + code
	}
	switch labels["verb"] {
	case "POST", "PUT", "PATCH", "APPLY", "DELETE":
		return s.writes.count(key, value)
	case "LIST":
		return s.lists.count(key, value)
	}
	return nil
}

func (r requests) count(key, value string) error {
	n, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return fmt.Errorf("read the API server's metrics: %w", err)
	}
	r[key] += int(n)
	return nil
}

// without subtracts the counts of others from r, in place, and returns r. No count becomes negative.
func (r requests) without(others requests) requests {
	for key, n := range others {
		r[key] = max(0, r[key]-n)
	}
	return r
}

// since returns the increase since an earlier count.
func (r requests) since(before requests) requests {
	more := requests{}
	for key, n := range r {
		if n > before[key] {
			more[key] = n - before[key]
		}
	}
	return more
}

func (r requests) add(more requests) {
	for key, n := range more {
		r[key] += n
	}
}

func (r requests) total() int {
	sum := 0
	for _, n := range r {
		sum += n
	}
	return sum
}

// quiet is how long there must be no writes before the system counts as settled. The status of subnets is written at most once a
// second.
const quiet = 2500 * time.Millisecond

// settle waits until there have been no writes for the time quiet, and returns the counts at the end.
func (w *world) settle(ctx context.Context) (served, error) {
	last, err := w.served(ctx)
	for err == nil {
		select {
		case <-ctx.Done():
			return last, context.Cause(ctx)
		case <-time.After(quiet):
		}
		var next served
		if next, err = w.served(ctx); maps.Equal(next.writes, last.writes) {
			return next, err
		}
		last = next
	}
	return last, err
}
