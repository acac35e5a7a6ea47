// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// repairDelay is the time between the deletion of a port, or the discovery that it is missing, and its repair. Another agent, which is about to end,
	// may serve the DEL: it removes the port first, and the veth a moment later.
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

	mu     sync.Mutex
	absent map[string]absence   // by port
	failed map[string]bool      // ports that are still missing after an attempt
	limits map[string]time.Time // when repairLimits has last set the limits of a port
}

// absence is a port that is missing since a time. The attachment is the last record of a port whose deletion was seen, and empty for others.
type absence struct {
	ovs.Attachment
	since time.Time
}

// portDeleted records the deletion of a port, by whichever program. It does not block.
func (r *repairs) portDeleted(a ovs.Attachment) {
	r.mu.Lock()
	r.record(a.Name, absence{a, time.Now()})
	r.mu.Unlock()
	r.requests.Add(a.Name)
}

// portMissing records that a link has no port, unless that is known.
func (r *repairs) portMissing(name string) {
	r.mu.Lock()
	if _, known := r.absent[name]; !known {
		r.record(name, absence{since: time.Now()})
	}
	r.mu.Unlock()
	r.requests.Add(name)
}

func (r *repairs) record(name string, missing absence) {
	if r.absent == nil {
		r.absent = map[string]absence{}
	}
	r.absent[name] = missing
}

func (r *repairs) absence(name string) (absence, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing, known := r.absent[name]
	return missing, known
}

// done forgets an absence that has ended, or that needs no repair. It keeps the record of a later deletion of the same port.
func (r *repairs) done(name string, ended absence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.absent[name].since.Equal(ended.since) {
		delete(r.absent, name)
	}
	delete(r.failed, name)
}

// present forgets that a port was missing before a time: another program has added it.
func (r *repairs) present(name string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if missing, known := r.absent[name]; known && !missing.since.Before(at) {
		return
	}
	delete(r.absent, name)
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

// forget removes the ports whose veth does not exist from the records.
func (r *repairs) forget(links map[string]sandbox.HostLink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.failed, func(name string, _ bool) bool { _, exists := links[name]; return !exists })
	maps.DeleteFunc(r.limits, func(name string, _ time.Time) bool { _, exists := links[name]; return !exists })
}

// relimit records that repairLimits sets the limits of a port now.
func (r *repairs) relimit(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limits == nil {
		r.limits = map[string]time.Time{}
	}
	r.limits[name] = time.Now()
}

// untilRelimit returns how long repairLimits has to wait for a port.
func (r *repairs) untilRelimit(name string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.limits[name]
	if !known {
		return 0
	}
	return repairInterval - time.Since(last)
}

func (r *repairs) missing() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failed)
}

// setupRepairs adds the controller that adds ports of running pods and their limits again. A request is the name of a port, or "" for a comparison of all.
func (s *Server) setupRepairs(mgr ctrl.Manager) error {
	s.Bridge.SubscribeDeleted(s.repairs.portDeleted)
	s.Bridge.Subscribe(func(name string) {
		if name != "" {
			s.repairs.requests.Add(name)
		}
	})
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

// comparePorts compares the veths of the node with the ports of Open vSwitch. It writes a note of each attachment on its veth, and requests the repair of
// veths without a port and the comparison of the limits of ports: a changed row of a QoS or a queue does not name its port.
func (s *Server) comparePorts(ctx context.Context) error {
	began := time.Now()
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
	s.repairs.forget(links)
	var failed []error
	for name, link := range links {
		a, ok := attached[name]
		if !ok {
			s.repairs.portMissing(name)
			continue
		}
		s.repairs.present(name, began)
		s.repairs.requests.Add(name)
		text, err := s.noteOf(ctx, a)
		if err == nil && text != link.Note && text != "" {
			err = sandbox.Note(name, text)
		}
		failed = append(failed, err)
	}
	missingPorts.WithLabelValues(s.Node).Set(float64(s.repairs.missing()))
	return errors.Join(append(failed, s.compareLimits(ctx))...)
}

// repair adds a port again, if its container still runs and no other container has its logical port. It compares the limits of a port that exists.
func (s *Server) repair(ctx context.Context, name string) (ctrl.Result, error) {
	missing, known := s.repairs.absence(name)
	if !known {
		return s.repairLimits(ctx, name)
	}
	if wait := repairDelay - time.Since(missing.since); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	a, needed := missing.Attachment, true
	var err error
	if a.ContainerID == "" {
		a, needed, err = s.noted(ctx, name)
	}
	restored := false
	if needed && err == nil {
		restored, err = s.restore(ctx, a)
	}
	if errors.Is(err, errBusy) {
		return ctrl.Result{RequeueAfter: repairDelay}, nil
	}
	if err == nil {
		s.repairs.done(name, missing)
	} else if needed {
		s.repairs.fail(name)
		s.reportPort(ctx, a, v1.ReasonPortMissing, fmt.Sprintf("The pod has no network: its port %s is missing in Open vSwitch, and cannot be added again: %v", name, err))
	}
	missingPorts.WithLabelValues(s.Node).Set(float64(s.repairs.missing()))
	if !restored || err != nil {
		return ctrl.Result{}, err
	}
	restoredPorts.WithLabelValues(s.Node).Inc()
	ctrl.LoggerFrom(ctx).Info("added a port again that was missing in Open vSwitch", "pod", a.PodNamespace+"/"+a.PodName, "logicalPort", a.LogicalPort)
	s.reportPort(ctx, a, v1.ReasonPortRestored, fmt.Sprintf(
		"The pod had no network: its port %s was missing in Open vSwitch. The agent has added it again. Find the program that removes ports of br-int", name))
	if len(a.ProbePorts) > 0 {
		s.Probes.Wake() // a pass without the port has removed its routes
	}
	return ctrl.Result{}, s.follow(ctx, podOf(a))
}

// errBusy means that an ADD or DEL of the interface runs.
var errBusy = errors.New("an ADD or DEL runs")

// restore adds the port of a again. It returns false if the container needs none: its pod or its namespace was deleted, or another container has its
// logical port. It returns errBusy during an ADD or DEL of the interface: an ADD that waits for the port of another container must not delay others.
func (s *Server) restore(ctx context.Context, a ovs.Attachment) (bool, error) {
	unlock, free := s.locks.tryLock(a.ContainerID, a.IfName)
	if !free {
		return false, errBusy
	}
	defer unlock()
	exists, err := s.Pods.Exists(ctx, podOf(a), types.UID(a.PodUID))
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
	if a.Limits, err = s.limitsFor(ctx, a); err != nil {
		return false, err
	}
	return s.Bridge.Restore(ctx, a)
}

// reportPort reports an event on the pod of an attachment, if it exists.
func (s *Server) reportPort(ctx context.Context, a ovs.Attachment, reason, message string) {
	pod, err := s.Pods.get(ctx, podOf(a))
	if err == nil && pod != nil && isPod(pod, types.UID(a.PodUID)) {
		k8s.Warn(s.Recorder, pod, reason, message)
	}
}

// noteVersion begins the record of an attachment on its veth.
const noteVersion = "kiln1"

// note is the record of an attachment on its veth, from which noted makes the port again.
type note struct{ containerID, ifName, network, podUID, netNS, provider string }

// String returns the text of a note; "" if a value does not fit.
func (n note) String() string {
	fields := []string{noteVersion, n.containerID, n.ifName, n.network, n.podUID, n.netNS, n.provider}
	for _, f := range fields {
		if f == "" || strings.ContainsAny(f, " \n") {
			return ""
		}
	}
	if text := strings.Join(fields, " "); len(text) <= sandbox.MaxNote {
		return text
	}
	return ""
}

// parseNote returns false for text that is no note.
func parseNote(text string) (note, bool) {
	fields := strings.Split(text, " ")
	if len(fields) != 7 || fields[0] != noteVersion {
		return note{}, false
	}
	return note{fields[1], fields[2], fields[3], fields[4], fields[5], fields[6]}, true
}

// noteOf returns the text of the note of an attachment; "" if it has none, or if the pod does not exist.
func (s *Server) noteOf(ctx context.Context, a ovs.Attachment) (string, error) {
	pod, err := s.Pods.get(ctx, podOf(a))
	if err != nil || pod == nil {
		return "", err
	}
	return note{a.ContainerID, a.IfName, a.Network, a.PodUID, a.NetNS, providerOf(pod, a.LogicalPort)}.String(), nil
}

// providerOf returns the provider of the network whose logical port a pod has; "" if none of its networks has that port.
func providerOf(pod *metav1.PartialObjectMetadata, port string) string {
	for provider := range providers(pod) {
		if v1.PortOf(pod, provider).Name == port {
			return provider
		}
	}
	return ""
}

// noted returns the attachment of a veth by its note and the annotations of its pod. It returns false without a note, if the pod does not exist, or
// if a later container of the pod has the interface. Users may write annotations, so they must agree with the subnet, as for an ADD. If they do not, the
// error says so, and the attachment names the pod.
func (s *Server) noted(ctx context.Context, name string) (ovs.Attachment, bool, error) {
	links, err := sandbox.HostLinks()
	if err != nil {
		return ovs.Attachment{}, false, err
	}
	n, is := parseNote(links[name].Note)
	if !is || superseded(links, name, n) {
		return ovs.Attachment{}, false, nil
	}
	pod, err := s.Pods.ofUID(ctx, types.UID(n.podUID))
	if err != nil || pod == nil {
		return ovs.Attachment{}, false, err
	}
	network, missing := allocation(pod, pod.UID, n.provider)
	if missing == "" {
		missing, err = s.Pods.unfit(ctx, network)
	}
	if err == nil && missing != "" {
		err = errors.New(missing)
	}
	r := wire.Request{ContainerID: n.containerID, IfName: n.ifName, Network: n.network, PodUID: n.podUID, NetNS: n.netNS, Provider: n.provider}
	a := attachmentOf(r, pod, network, sandbox.Interface{HostName: name})
	if err == nil {
		a.ProbePorts, err = s.probePorts(ctx, pod, network)
	}
	return a, true, err
}

// superseded reports whether a later link has the same interface of the same pod: its container has replaced the container of the named link, which may
// still exist.
func superseded(links map[string]sandbox.HostLink, name string, n note) bool {
	for _, link := range links {
		other, is := parseNote(link.Note)
		if is && other.podUID == n.podUID && other.ifName == n.ifName && link.Index > links[name].Index {
			return true
		}
	}
	return false
}
