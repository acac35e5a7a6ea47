// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/cni/wire"
)

const (
	// repairDelay is the time between the deletion of a port and its repair. Another agent, which is about to end, may serve the DEL: it removes the
	// port first, and the veth a moment later.
	repairDelay = time.Second
	// repairInterval is the interval of comparisons of the node's veths with the ports. They find ports that disappeared while the agent or the
	// connection to Open vSwitch was down.
	repairInterval = time.Minute
)

var (
	restoredPorts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kiln_pod_ports_restored_total",
		Help: "Ports of running pods that were missing in Open vSwitch and that the agent has added again.",
	}, []string{"node_name"})
	missingPorts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_pod_ports_missing",
		Help: "Veths of pods without a port in Open vSwitch that the agent could not add again.",
	}, []string{"node_name"})
)

func init() { metrics.Registry.MustRegister(restoredPorts, missingPorts) }

// repairs is the state of the controller that adds ports of running pods again.
type repairs struct {
	requests k8s.RequestSource

	mu      sync.Mutex
	deleted map[string]deletion // by port
	failed  map[string]bool     // ports that are still missing after an attempt
}

// deletion is the last record of a deleted port.
type deletion struct {
	ovs.Attachment
	at time.Time
}

// portDeleted records the deletion of a port, by whichever program. It does not block.
func (r *repairs) portDeleted(a ovs.Attachment) {
	r.mu.Lock()
	if r.deleted == nil {
		r.deleted = map[string]deletion{}
	}
	r.deleted[a.Name] = deletion{a, time.Now()}
	r.mu.Unlock()
	r.requests.Add(a.Name)
}

func (r *repairs) record(name string) (deletion, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.deleted[name]
	return d, ok
}

// done forgets a port that was added again, or that needs none.
func (r *repairs) done(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.deleted, name)
	delete(r.failed, name)
}

func (r *repairs) fail(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = map[string]bool{}
	}
	r.failed[name] = true
}

func (r *repairs) missing() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failed)
}

// setupRepairs adds the controller that adds ports of running pods again. A request is the name of a port, or "" for a comparison of all.
func (s *Server) setupRepairs(mgr ctrl.Manager) error {
	s.Bridge.SubscribeDeleted(s.repairs.portDeleted)
	s.repairs.requests.Add("")
	err := ctrl.NewControllerManagedBy(mgr).
		Named("pod-ports").
		WatchesRawSource(&s.repairs.requests).
		WithOptions(k8s.Workers(1)).
		Complete(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			if !s.Pods.Synced() {
				return ctrl.Result{RequeueAfter: repairDelay}, nil
			}
			if req.Name == "" {
				return ctrl.Result{RequeueAfter: k8s.Periodic(repairInterval)}, s.comparePorts(ctx)
			}
			return s.repair(ctx, req.Name)
		}))
	if err != nil {
		return fmt.Errorf("add the controller of ports that are missing: %w", err)
	}
	return nil
}

// comparePorts compares the veths of the node with the ports of Open vSwitch. It records each attachment on its veth, and requests the repair of
// veths without a port.
func (s *Server) comparePorts(ctx context.Context) error {
	attachments, err := s.Bridge.Attachments(ctx)
	if err != nil {
		return err
	}
	attached := make(map[string]ovs.Attachment, len(attachments))
	for _, a := range attachments {
		attached[a.Name] = a
	}
	links, err := sandbox.HostLinks()
	if err != nil {
		return err
	}
	var failed []error
	for name, noted := range links {
		a, ok := attached[name]
		if !ok {
			s.repairs.requests.Add(name)
			continue
		}
		s.repairs.done(name)
		if note := noteOf(a); note != noted && note != "" {
			failed = append(failed, sandbox.Note(name, note))
		}
	}
	missingPorts.WithLabelValues(s.Node).Set(float64(s.repairs.missing()))
	return errors.Join(failed...)
}

// repair adds a port again, if its container still runs and no other container has its logical port.
func (s *Server) repair(ctx context.Context, name string) (ctrl.Result, error) {
	d, deleted := s.repairs.record(name)
	if wait := repairDelay - time.Since(d.at); deleted && wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	a := d.Attachment
	if !deleted {
		var known bool
		var err error
		if a, known, err = s.noted(ctx, name); err != nil || !known {
			return ctrl.Result{}, err
		}
	}
	restored, err := s.restore(ctx, a)
	if err != nil {
		s.repairs.fail(name)
		s.reportPort(ctx, a, v1.ReasonPortMissing, fmt.Sprintf("The pod has no network: its port %s is missing in Open vSwitch, and cannot be added again: %v", name, err))
	} else {
		s.repairs.done(name)
	}
	missingPorts.WithLabelValues(s.Node).Set(float64(s.repairs.missing()))
	if !restored || err != nil {
		return ctrl.Result{}, err
	}
	restoredPorts.WithLabelValues(s.Node).Inc()
	ctrl.LoggerFrom(ctx).Info("added a port again that was missing in Open vSwitch", "pod", a.PodNamespace+"/"+a.PodName, "logicalPort", a.LogicalPort)
	s.reportPort(ctx, a, v1.ReasonPortRestored, fmt.Sprintf(
		"The pod had no network: its port %s was missing in Open vSwitch. The agent has added it again. Find the program that removes ports of br-int", name))
	return ctrl.Result{}, s.follow(ctx, types.NamespacedName{Namespace: a.PodNamespace, Name: a.PodName})
}

// restore adds the port of a again. It returns false if the container needs none: its pod or its namespace was deleted, or another container has its
// logical port. It waits for an ADD or DEL of the interface that runs.
func (s *Server) restore(ctx context.Context, a ovs.Attachment) (bool, error) {
	unlock, err := s.locks.lock(ctx, a.ContainerID, a.IfName)
	if err != nil {
		return false, err
	}
	defer unlock()
	exists, err := s.Pods.Exists(ctx, types.NamespacedName{Namespace: a.PodNamespace, Name: a.PodName}, types.UID(a.PodUID))
	if err != nil || !exists {
		return false, err
	}
	intact, err := sandbox.Interface{NetNS: a.NetNS, Name: a.IfName, HostName: a.Name}.Intact()
	if errors.Is(err, sandbox.ErrNoNamespace) || err == nil && !intact {
		return false, nil // the rest of an ADD that failed, or of a DEL
	}
	if err != nil {
		return false, err
	}
	return s.Bridge.Restore(ctx, a)
}

func (s *Server) reportPort(ctx context.Context, a ovs.Attachment, reason, message string) {
	pod, err := s.Pods.get(ctx, types.NamespacedName{Namespace: a.PodNamespace, Name: a.PodName})
	if err == nil && pod != nil {
		k8s.Warn(s.Recorder, pod, reason, message)
	}
}

// noteVersion begins the record of an attachment on its veth.
const noteVersion = "kiln1"

// noteOf returns the record of an attachment on its veth, from which noted makes the port again. It is empty if a value does not fit.
func noteOf(a ovs.Attachment) string {
	fields := []string{noteVersion, a.ContainerID, a.IfName, a.Network, a.PodUID, a.NetNS}
	for _, f := range fields {
		if f == "" || strings.ContainsAny(f, " \n") {
			return ""
		}
	}
	if note := strings.Join(fields, " "); len(note) <= sandbox.MaxNote {
		return note
	}
	return ""
}

// noted returns the attachment of a veth by its record and the annotations of its pod; false without a record, or if the pod does not exist. Users
// may write annotations, so they must agree with the subnet, as for an ADD.
func (s *Server) noted(ctx context.Context, name string) (ovs.Attachment, bool, error) {
	links, err := sandbox.HostLinks()
	if err != nil {
		return ovs.Attachment{}, false, err
	}
	fields := strings.Split(links[name], " ")
	if len(fields) != 6 || fields[0] != noteVersion {
		return ovs.Attachment{}, false, nil
	}
	r := wire.Request{ContainerID: fields[1], IfName: fields[2], Network: fields[3], PodUID: fields[4], NetNS: fields[5], Provider: v1.ProviderOVN}
	pod, err := s.Pods.ofUID(ctx, types.UID(r.PodUID))
	if err != nil || pod == nil {
		return ovs.Attachment{}, false, err
	}
	network, missing := allocation(pod, pod.UID, r.Provider)
	if missing == "" {
		missing, err = s.Pods.unfit(ctx, network)
	}
	if err != nil || missing != "" {
		return ovs.Attachment{}, false, err
	}
	a := attachmentOf(r, pod, network, sandbox.Interface{HostName: name})
	a.ProbePorts, err = s.probePorts(ctx, pod, network)
	return a, err == nil, err
}
