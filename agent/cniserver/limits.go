// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/limits"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// indexSubnets finds the pods of the node by the subnets of their networks.
const indexSubnets = "pod.subnets"

// subnetsOf returns the subnets of the networks that are allocated for a pod, for the index. Users write annotations, and the cache is locked meanwhile: the
// time is proportional to their number.
func subnetsOf(pod client.Object) []string {
	annotations := pod.GetAnnotations()
	subnets := map[string]bool{}
	for key, subnet := range annotations {
		provider, is := strings.CutSuffix(key, v1.AnnotationLogicalSwitch.For(""))
		if !is || subnet == "" {
			continue
		}
		network := v1.PodNetwork{
			UID:       types.UID(annotations[v1.AnnotationPodUID.For(provider)]),
			Allocated: annotations[v1.AnnotationAllocated.For(provider)] == "true",
		}
		if network.IsFor(pod.GetUID()) {
			subnets[subnet] = true
		}
	}
	return slices.Collect(maps.Keys(subnets))
}

// onLimits enqueues the pods of a subnet.
func (s *Server) onLimits(ctx context.Context, subnet client.Object) []reconcile.Request {
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(PodMetadata().GroupVersionKind())
	if err := s.Pods.cache.List(ctx, pods, client.MatchingFields{indexSubnets: subnet.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	requests := make([]reconcile.Request, len(pods.Items))
	for i := range pods.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&pods.Items[i])
	}
	return requests
}

// relimits reports whether an update of a pod changes requests of limits.
func relimits(before, after map[string]string) bool {
	for _, pair := range [][2]map[string]string{{before, after}, {after, before}} {
		for key, value := range pair[0] {
			if v1.IsLimit(key) && pair[1][key] != value {
				return true
			}
		}
	}
	return false
}

// limitsOf returns the limits of a pod's port in a network. The controller reports to the pod's user how they differ from the request.
func (s *Server) limitsOf(ctx context.Context, annotations map[string]string, network v1.PodNetwork) (limits.Port, error) {
	subnet, err := k8s.Find[v1.Subnet](ctx, s.Pods.cache, client.ObjectKey{Name: network.LogicalSwitch}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return limits.Port{}, fmt.Errorf("read subnet %s: %w", network.LogicalSwitch, err)
	}
	request := v1.ParseLimits(annotations, network.Provider)
	var admin *v1.PodLimits
	if subnet != nil {
		admin = subnet.Status.PodLimits
	}
	if request == (v1.LimitRequest{}) && admin == nil {
		return limits.Port{}, nil
	}
	userspace, err := s.Bridge.Userspace(ctx)
	if err != nil {
		return limits.Port{}, err
	}
	port, _ := limits.Effective(request, admin, userspace)
	return port, nil
}

// relimitInTurn calls relimit with the interface locked. If the limits are applied already, it does not wait for the lock.
func (s *Server) relimitInTurn(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	if _, applied, err := s.wantedLimits(ctx, a, network); applied || err != nil {
		return err
	}
	return s.inTurn(ctx, a, func(a ovs.Attachment) error { return s.relimit(ctx, a, network) })
}

// relimit applies the current limits of a pod to its port. Users may write annotations if no admission policy prevents it: limits of a subnet to which the
// annotations do not belong leave those of the port as they are.
func (s *Server) relimit(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	want, applied, err := s.wantedLimits(ctx, a, network)
	if applied || err != nil || a.PodUID != string(network.UID) {
		return err
	}
	if why, err := s.Pods.unfit(ctx, network); why != "" || err != nil {
		return err
	}
	if err := s.Bridge.Limit(ctx, a.Name, want); err != nil || want.Netem == (limits.Netem{}) {
		return err
	}
	return sandbox.Delay(a.Name, want.Netem)
}

// wantedLimits returns the limits of a port by the newest annotations of its pod, and whether the port has them. A deleted pod keeps its limits.
func (s *Server) wantedLimits(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) (want limits.Port, applied bool, err error) {
	pod, err := s.Pods.get(ctx, podOf(a))
	if err != nil || pod == nil || !isPod(pod, types.UID(a.PodUID)) {
		return want, true, err
	}
	if want, err = s.limitsOf(ctx, pod.Annotations, network); err != nil {
		return want, false, err
	}
	applied, err = s.Bridge.Limited(ctx, a.Name, want)
	return want, applied, err
}

// limitsFor returns the limits of a port by the newest annotations of its pod; nil if they describe no network of the port, or one that does not fit its
// subnet.
func (s *Server) limitsFor(ctx context.Context, a ovs.Attachment) (*limits.Port, error) {
	pod, network, err := s.networkOf(ctx, a)
	if err != nil || pod == nil {
		return nil, err
	}
	if why, err := s.Pods.unfit(ctx, network); why != "" || err != nil {
		return nil, err
	}
	l, err := s.limitsOf(ctx, pod.Annotations, network)
	if err != nil {
		return nil, err
	}
	return &l, nil
}

// networkOf returns the pod of a port with the network that its annotations describe for the port. The pod is nil if there is no such network.
func (s *Server) networkOf(ctx context.Context, a ovs.Attachment) (*metav1.PartialObjectMetadata, v1.PodNetwork, error) {
	pod, err := s.Pods.get(ctx, podOf(a))
	if err != nil || pod == nil {
		return nil, v1.PodNetwork{}, err
	}
	network, missing := allocation(pod, types.UID(a.PodUID), providerOf(pod, a.LogicalPort))
	if missing != "" {
		return nil, v1.PodNetwork{}, nil
	}
	return pod, network, nil
}

// repairLimits sets the limits of an existing port again if another program has changed their rows: at most once in repairInterval, so that two programs that
// disagree do not keep the node busy.
func (s *Server) repairLimits(ctx context.Context, name string) (ctrl.Result, error) {
	a, found, err := s.Bridge.Find(ctx, name)
	if err != nil || !found {
		return ctrl.Result{}, err
	}
	pod, network, err := s.networkOf(ctx, a)
	if err != nil || pod == nil {
		return ctrl.Result{}, err
	}
	if _, applied, err := s.wantedLimits(ctx, a, network); applied || err != nil {
		return ctrl.Result{}, err
	}
	if wait := s.repairs.untilRelimit(name); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	unlock, free := s.locks.tryLock(a.ContainerID, a.IfName)
	if !free {
		return ctrl.Result{RequeueAfter: repairDelay}, nil
	}
	defer unlock()
	s.repairs.relimit(name)
	return ctrl.Result{}, s.relimit(ctx, a, network)
}

// unenforced are the ports whose limits the kernel did not have at the last comparison. One comparison may be between the transaction and its effect.
type unenforced struct {
	mu    sync.Mutex
	since map[string]int // the number of comparisons, by port and missing part
}

// missing counts the parts that are missing in a comparison, and returns the parts that are missing for the second time.
func (u *unenforced) missing(parts []string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := make(map[string]int, len(parts))
	var again []string
	for _, part := range parts {
		if next[part] = u.since[part] + 1; next[part] == 2 {
			again = append(again, part)
		}
	}
	u.since = next
	return again
}

// compareLimits reports an event for each port whose limits ovs-vswitchd could not install in the kernel: its database does not say so. It repeats changes of
// netem, before which the agent may have ended.
func (s *Server) compareLimits(ctx context.Context) error {
	limited, err := s.Bridge.LimitedPorts(ctx)
	if err != nil {
		return err
	}
	var shaped map[string]sandbox.Shaping
	if len(limited) > 0 {
		if shaped, err = sandbox.Shapings(); err != nil {
			return err
		}
	}
	var missing []string
	ports := map[string]ovs.LimitedPort{}
	for _, port := range limited {
		have, exists := shaped[port.Name]
		if !exists {
			continue // its container ended
		}
		if port.Qdisc != "" && have.Qdisc != port.Qdisc {
			missing = append(missing, port.Name+" "+port.Qdisc)
		}
		if port.Netem != (limits.Netem{}) {
			if err := sandbox.Delay(port.Name, port.Netem); err != nil {
				return err
			}
		}
		if port.Policed {
			policed, err := sandbox.Polices(port.Name)
			if err != nil {
				return err
			}
			if !policed {
				missing = append(missing, port.Name+" "+policing)
			}
		}
		ports[port.Name] = port
	}
	for _, part := range s.unenforced.missing(missing) {
		name, kind, _ := strings.Cut(part, " ")
		s.reportPort(ctx, ports[name].Attachment, v1.ReasonLimitNotEnforced, fmt.Sprintf(
			"A limit of the pod is not enforced: the kernel of node %s has no %s at its interface %s. Load its modules, or see the log of the pod ovs-ovn of this node",
			s.Node, remedies[kind], name))
	}
	return nil
}

// policing is the part of a limit that is not a qdisc. remedies name the modules of the kernel.
const policing = "policing"

var remedies = map[string]string{
	"htb": "sch_htb for ingress_rate", "netem": "sch_netem for latency, jitter, limit and loss",
	policing: "policing for egress_rate (sch_ingress, cls_matchall or cls_basic, act_police)",
}
