// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// componentLabel has the name of a pod's workload.
const componentLabel = "app.kubernetes.io/component"

// listTimeout bounds the list of pods, so that time is left for the targets.
const listTimeout = 2 * time.Second

// centralPods selects the pods of the databases and of ovn-northd.
const centralPods = "app=ovn-central"

// servers are the processes with metrics, by the name of their workload.
var servers = map[string]struct {
	component, server string
	port              uint16
}{
	"ovn-central-nb":     {"ovsdb-server-northbound", adminapi.NorthboundName, adminapi.PortNorthbound},
	"ovn-central-sb":     {"ovsdb-server-southbound", adminapi.SouthboundName, adminapi.PortSouthbound},
	"ovn-central-northd": {"ovn-northd", adminapi.NorthdName, adminapi.PortNorthd},
}

// Pods finds targets by their pods.
type Pods struct {
	// Client of the namespace.
	Client typedcorev1.PodInterface

	mu   sync.Mutex
	last []Target
}

// Targets returns the processes of the pods that have an address. While the API server does not answer, it returns those of the previous call.
func (p *Pods) Targets(ctx context.Context) ([]Target, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A list from the API server's cache: it costs no read of etcd.
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	pods, err := p.Client.List(ctx, metav1.ListOptions{LabelSelector: centralPods, ResourceVersion: "0"})
	if err != nil {
		if p.last == nil {
			return nil, fmt.Errorf("list the pods of the databases: %w", err)
		}
		return p.last, nil
	}
	p.last = []Target{}
	for i := range pods.Items {
		if t, ok := targetOf(&pods.Items[i]); ok {
			p.last = append(p.last, t)
		}
	}
	return p.last, nil
}

func targetOf(pod *corev1.Pod) (Target, bool) {
	of, is := servers[pod.Labels[componentLabel]]
	address, err := netip.ParseAddr(pod.Status.PodIP)
	ended := pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	if !is || err != nil || ended {
		return Target{}, false
	}
	return Target{Node: pod.Spec.NodeName, Component: of.component, Server: of.server, Address: netip.AddrPortFrom(address, of.port)}, true
}
