// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kiln-net/kiln/internal/podlabel"
	"github.com/kiln-net/kiln/supervisor"
)

// peersLabel selects the pods of ovn-northd.
const peersLabel = "app.kubernetes.io/component=ovn-central-northd"

// peerPatience is how long the active ovn-northd waits for a standby: its own list of members may be stale by then.
const peerPatience = time.Minute

// Peers finds the other pods of ovn-northd.
type Peers struct {
	Pods typedcorev1.PodInterface
	// Pod is the name of this process's own pod.
	Pod string
	Log logr.Logger
}

// Await returns once another ovn-northd runs with these members, if no other pod could take over, or after peerPatience.
func (p Peers) Await(ctx context.Context, members string) {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	report := func(err error) { p.Log.V(1).Info("retrying", "reason", err.Error()) }
	supervisor.Retry(ctx, report, func() error { return p.await(ctx, members) })
}

func (p Peers) await(ctx context.Context, members string) error {
	list, err := p.Pods.List(ctx, metav1.ListOptions{LabelSelector: peersLabel})
	if err != nil {
		return fmt.Errorf("list the pods of ovn-northd: %w", err)
	}
	standing := map[string]bool{} // the pods that could take over
	for i := range list.Items {
		if p.follows(&list.Items[i], standing, members) {
			return nil
		}
	}
	if len(standing) == 0 {
		return nil
	}
	events, err := p.Pods.Watch(ctx, metav1.ListOptions{LabelSelector: peersLabel, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watch the pods of ovn-northd: %w", err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		pod, isPod := event.Object.(*corev1.Pod)
		if !isPod {
			break
		}
		if event.Type == watch.Deleted {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		if p.follows(pod, standing, members) || len(standing) == 0 {
			return nil
		}
	}
	return errors.New("the watch of the pods of ovn-northd ended")
}

// follows reports whether another pod runs with these members, and updates standing with whether that pod could take over.
func (p Peers) follows(pod *corev1.Pod, standing map[string]bool, members string) bool {
	if pod.Name == p.Pod {
		return false
	}
	serves := pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning
	if standing[pod.Name] = serves; !serves {
		delete(standing, pod.Name)
	}
	return serves && pod.Labels[podlabel.NorthdMembers] == members
}
