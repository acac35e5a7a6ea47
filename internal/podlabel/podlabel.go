// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podlabel maintains labels of the pod of a process. Services select the leader by them.
package podlabel

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kiln-net/kiln/supervisor"
)

// The labels by which the Services ovn-nb, ovn-sb and ovn-northd select their pods.
const (
	NorthboundLeader = "ovn-nb-leader"
	SouthboundLeader = "ovn-sb-leader"
	NorthdLeader     = "ovn-northd-leader"
)

// The labels in which the writers of a database record the cluster ID of the database that they last brought up to date.
const (
	NorthboundWritten = "kubeovn.io/northbound-written"
	SouthboundWritten = "kubeovn.io/southbound-written"
)

// NorthdMembers is the label with a hash of the database members' addresses that an ovn-northd runs with.
const NorthdMembers = "kubeovn.io/northd-members"

const (
	// withdrawTimeout bounds the last write when the pod stops.
	withdrawTimeout = 3 * time.Second
	// writeTimeout bounds each other write. It is longer than the API server's own limit (--request-timeout, a minute by default), which a
	// request can wait in a queue of priority and fairness.
	writeTimeout = 90 * time.Second
	// supersededTimeout bounds a write once there is a newer value, which is not written before.
	supersededTimeout = 5 * time.Second
)

// Label is one label of one pod. Run writes "true" or "false", Put and Follow write any value.
type Label struct {
	Pods corev1.PodInterface
	Pod  string
	Key  string
	Log  logr.Logger
}

// Run writes the values from leads until ctx ends, and then writes "false". It retries failures, always with the newest value. A
// stale value from a previous container of the pod is overwritten at once.
func (l Label) Run(ctx context.Context, leads <-chan bool) {
	write(ctx, l, false, leads, strconv.FormatBool)
	l.withdraw()
}

// Put writes a value, with retries until it succeeds or ctx ends.
func (l Label) Put(ctx context.Context, value string) { l.put(ctx, ctx, value) }

// put writes a value, with retries until it succeeds or wanted ends. The end of wanted does not cancel a request, which the API
// server could then apply after a later one; the end of ctx does.
func (l Label) put(ctx, wanted context.Context, value string) {
	supervisor.Retry(wanted, func(err error) { l.Log.Error(err, "retrying") }, func() error {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		superseded := context.AfterFunc(wanted, func() {
			supervisor.Pause(ctx, supersededTimeout)
			cancel()
		})
		defer superseded()
		return l.patch(ctx, value)
	})
}

// Follow writes the values from the channel until ctx ends. It retries failures, always with the newest value, and never blocks
// the sender.
func (l Label) Follow(ctx context.Context, values <-chan string) {
	select {
	case first := <-values:
		write(ctx, l, first, values, func(value string) string { return value })
	case <-ctx.Done():
	}
}

// write writes value, and then each newest value from next, until ctx ends. A newer value ends the retries of the current one.
func write[T any](ctx context.Context, l Label, value T, next <-chan T, text func(T) string) {
	for ctx.Err() == nil {
		wanted, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func(value string) {
			defer close(done)
			l.put(ctx, wanted, value)
		}(text(value))
		select {
		case value = <-next:
		case <-ctx.Done():
		}
		cancel()
		for writes := true; writes; {
			select {
			case value = <-next:
			case <-done:
				writes = false
			}
		}
	}
}

func (l Label) withdraw() {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawTimeout)
	defer cancel()
	if err := l.patch(ctx, strconv.FormatBool(false)); err != nil {
		l.Log.Error(err, "the label stays as it is")
	}
}

// patch writes the label through the status subresource, which accepts labels and ignores changes of the spec. So the supervisor
// needs no permission to change pods themselves.
func (l Label) patch(ctx context.Context, value string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{l.Key: value}},
	})
	if err != nil {
		return fmt.Errorf("encode label %s: %w", l.Key, err)
	}
	if _, err := l.Pods.Patch(ctx, l.Pod, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("set label %s=%s of pod %s: %w", l.Key, value, l.Pod, err)
	}
	return nil
}
