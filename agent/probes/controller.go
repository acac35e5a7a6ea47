// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probes lets the kubelet reach pods of custom VPCs on this node. A packet of the node itself to a probed port of such a pod takes the
// pod's probe link (sandbox.Probe); everything else that the node sends to the same address takes the normal route. The ports of a pod are
// recorded at its port in Open vSwitch, so routes and rules follow from that database, from caches and from the kernel alone.
package probes

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/svc"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

const (
	// resync is the interval of comparisons without an event, such as a change of a rule that is not a deletion.
	resync = time.Minute
	// maxPorts bounds the ports of a pod. Each port on a node is a rule, and the kernel evaluates rules linearly for each packet.
	maxPorts = 16
)

// Recorder is the name under which the agent reports events.
const Recorder = "kube-ovn-cni"

// Reasons of events on pods.
const (
	ReasonAddressReserved = "ProbeAddressReserved"
	ReasonTooManyPorts    = "TooManyProbePorts"
)

// Controller makes the routes and rules of probes.
type Controller struct {
	// Client reads Services, EndpointSlices and IP objects from caches.
	Client   client.Client
	Bridge   *ovs.Bridge
	Services svc.CIDRs
	Recorder events.EventRecorder
	// Node is the name of the agent's node.
	Node string
	// APIServer is the host under which the agent reaches the API server; it is used only if it is an address.
	APIServer string

	requests k8s.RequestSource
	watch    func() error // starts the watches of objects that reserve addresses
	seen     atomic.Pointer[seen]

	passes passes

	mu       sync.Mutex // serializes passes
	watching bool
	reported map[string]string // by port: the addresses without routes, as reported by the last event
}

// seen holds the ports and addresses of the last pass. Only their events start another pass.
type seen struct {
	ports     map[string]bool // of Open vSwitch
	addresses map[netip.Addr]bool
}

// pod is a pod with probes and a probe link.
type pod struct {
	ovs.Attachment
	link int
}

// Ports returns the ports of a pod to which the kubelet connects, at most maxPorts of them. It reports an event on a pod that has more.
func (p *Controller) Ports(pod *corev1.Pod, addresses []netip.Addr) []uint16 {
	ports := PortsOf(pod, addresses)
	if len(ports) <= maxPorts {
		return ports
	}
	k8s.Warn(p.Recorder, pod, ReasonTooManyPorts, fmt.Sprintf(
		"The kubelet reaches probes and lifecycle hooks of this pod on ports %v only: it has more than %d different ports. Use fewer ports, or exec handlers",
		ports[:maxPorts], maxPorts))
	return ports[:maxPorts]
}

// Wake requests a pass. It does not block.
func (p *Controller) Wake() { p.requests.Add("") }

// RuleDeleted requests a pass if a rule with the protocol of probes was deleted. It does not block.
func (p *Controller) RuleDeleted(of uint8) {
	if of == protocol {
		p.Wake()
	}
}

// Reconcile runs a pass.
func (p *Controller) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	return ctrl.Result{RequeueAfter: k8s.Periodic(resync)}, p.Apply(ctx)
}

// Apply adds the wanted routes and rules of probes and removes all others. It is idempotent. Concurrent calls share passes: many pods
// that start concurrently need a few passes, not one each.
func (p *Controller) Apply(ctx context.Context) error { return p.passes.join(ctx, p.apply) }

// apply runs one pass.
func (p *Controller) apply(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	attachments, err := p.Bridge.Attachments(ctx)
	if err != nil {
		return fmt.Errorf("list ports: %w", err)
	}
	pods, err := probed(attachments)
	if err != nil {
		return err
	}
	p.remember(pods) // before the caches are read, so that later changes start another pass
	routes, rules, err := kernelState()
	if err != nil {
		return err
	}
	want, err := p.want(ctx, pods, connectedBy(routes))
	if err != nil {
		return err
	}
	return compare(want, routes, rules).apply()
}

// probed returns the pods that have ports for probes, and their links.
func probed(attachments []ovs.Attachment) ([]pod, error) {
	var out []pod
	for _, a := range attachments {
		if len(a.ProbePorts) == 0 {
			continue
		}
		link, err := sandbox.LinkIndex(sandbox.ProbeName(a.ContainerID, a.IfName))
		if err != nil {
			return nil, err
		}
		if link != 0 {
			out = append(out, pod{Attachment: a, link: link})
		}
	}
	return out, nil
}

func (p *Controller) remember(pods []pod) {
	now := seen{ports: map[string]bool{}, addresses: map[netip.Addr]bool{}}
	for _, pod := range pods {
		now.ports[pod.Name] = true
		for _, address := range pod.Addresses {
			now.addresses[address] = true
		}
	}
	p.seen.Store(&now)
}

// want returns the routes to pods, except routes to reserved addresses, and reports an event on each pod with such an address. connected
// are the destinations that have routes already.
func (p *Controller) want(ctx context.Context, pods []pod, connected map[destination]bool) (map[route]bool, error) {
	if len(pods) == 0 {
		p.reported = nil
		return nil, nil
	}
	if !p.watching {
		if err := p.watch(); err != nil {
			return nil, fmt.Errorf("watch Services, nodes and the API server: %w", err)
		}
		p.watching = true
	}
	reserved, err := p.reserved(ctx)
	if err != nil {
		return nil, err
	}
	routes, refused := map[route]bool{}, map[string]string{}
	for _, pod := range pods {
		var problems []string
		for _, address := range pod.Addresses {
			if description := reserved.against(address, connected[destination{address: address, link: pod.link}]); description != "" {
				problems = append(problems, fmt.Sprintf("%s is %s", address, description))
				continue
			}
			for _, port := range pod.ProbePorts {
				routes[route{port: port, address: address, link: pod.link}] = true
			}
		}
		if len(problems) == 0 {
			continue
		}
		problem := strings.Join(problems, ", ")
		if refused[pod.Name] = problem; p.reported[pod.Name] != problem {
			p.warn(pod, problem)
		}
	}
	p.reported = refused
	return routes, nil
}

func (p *Controller) warn(pod pod, problem string) {
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.PodNamespace, Name: pod.PodName, UID: types.UID(pod.PodUID)}}
	k8s.Warn(p.Recorder, object, ReasonAddressReserved, fmt.Sprintf(
		"The kubelet does not reach probes and lifecycle hooks of this pod: %s. Give the pod another address, or its subnet other CIDRs", problem))
}
