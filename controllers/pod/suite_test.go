// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// stepsAt returns the steps of a process that runs the reconciler of pods and writes IP objects at the given pace.
func stepsAt(pace ipobject.Pace) controllertest.Steps {
	return stepsWith(pace, func(*pod.Reconciler) {})
}

// stepsWith is stepsAt with a change of the reconciler.
func stepsWith(pace ipobject.Pace, change func(*pod.Reconciler)) controllertest.Steps {
	var r *pod.Reconciler
	return controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			r = networktest.Pods(p)
			r.KeepMachines, r.IPWritePace = true, pace
			change(r)
			return r.SetupWithManager(ctx, p.Manager)
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			return r.Restore(ctx, p.Manager.GetAPIReader())
		},
	}
}

// world is a World with helpers for tests of pods.
type world struct{ *controllertest.World }

func newWorld(t *testing.T) world { return world{controllertest.New(t)} }

func (w world) start() *controllertest.Process { return w.Start(stepsAt(ipobject.Pace{})) }

func (w world) subnet(name, cidr string, change ...func(*kubeovnv1.SubnetSpec)) *kubeovnv1.Subnet {
	return w.subnetIn(nil, name, cidr, change...)
}

func (w world) subnetIn(p *controllertest.Process, name, cidr string, change ...func(*kubeovnv1.SubnetSpec)) *kubeovnv1.Subnet {
	w.Helper()
	var running []*controllertest.Process
	if p != nil {
		running = append(running, p)
	}
	return w.Subnet(name, func(s *kubeovnv1.SubnetSpec) {
		s.CIDRBlock = cidr
		for _, f := range change {
			f(s)
		}
	}, running...)
}

func serving(namespaces ...string) func(*kubeovnv1.SubnetSpec) {
	return func(s *kubeovnv1.SubnetSpec) { s.Namespaces = namespaces }
}

func (w world) namespace(name string, labels map[string]string) {
	w.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.Client.Create(w.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
	w.Get(ns)
	w.Change(ns, func() {
		ns.Labels = labels
	})
}

// newPod returns a pod on n1. Annotations are pairs of names, without prefix, and values.
func newPod(namespace, name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName:   "n1",
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Annotations[kubeovnv1.Annotation(annotations[i]).Key()] = annotations[i+1]
	}
	return p
}

// pod creates a pod and returns it once its annotations contain its network.
func (w world) pod(namespace, name string, annotations ...string) *corev1.Pod {
	w.Helper()
	p := newPod(namespace, name, annotations...)
	w.Create(p)
	w.allocated(p)
	return p
}

// allocated waits until a pod has the results of its own allocation.
func (w world) allocated(p *corev1.Pod) kubeovnv1.PodNetwork {
	w.Helper()
	var network kubeovnv1.PodNetwork
	w.Eventually(func() string {
		w.Get(p)
		var err error
		if network, err = kubeovnv1.ParsePodNetwork(p.Annotations); err != nil {
			return err.Error()
		}
		if !network.IsFor(p.UID) || !network.Routed {
			return fmt.Sprintf("pod %s has %v", p.Name, p.Annotations)
		}
		return ""
	})
	return network
}

func address(p *corev1.Pod) string { return p.Annotations[kubeovnv1.AnnotationIPAddress.Key()] }

// warned waits for an event that explains why a pod has no address.
func (w world) warned(p *corev1.Pod, text string) {
	w.Helper()
	w.warnedOf(p, "AcquireAddressFailed", text)
}

// warnedOf waits for a warning event on a pod.
func (w world) warnedOf(p *corev1.Pod, reason, text string) {
	w.Helper()
	w.Event(p, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: reason, Note: text})
}

// events counts the events of a reason on a pod.
func (w world) events(p *corev1.Pod, reason string) int {
	w.Helper()
	var list eventsv1.EventList
	w.Must(w.Client.List(w.Context(), &list))
	n := 0
	for _, e := range list.Items {
		if e.Regarding.UID == p.UID && e.Reason == reason {
			n++
			if e.Series != nil {
				n += int(e.Series.Count)
			}
		}
	}
	return n
}

// port waits for the port of a pod and returns it.
func (w world) port(p *corev1.Pod) nbtest.Row {
	w.Helper()
	var port nbtest.Row
	w.Eventually(func() string {
		port = w.portNow(p)
		if port == nil || port["options"].(map[string]string)["iface-id-ver"] != string(p.UID) {
			return fmt.Sprintf("port of pod %s is %v", p.Name, port)
		}
		return ""
	})
	return port
}

func (w world) portNow(p *corev1.Pod) nbtest.Row {
	w.Helper()
	for _, row := range w.Database.Rows("Logical_Switch_Port") {
		if row["name"] == p.Name+"."+p.Namespace {
			return row
		}
	}
	return nil
}

// ipObject waits for the IP object of a pod and returns it.
func (w world) ipObject(p *corev1.Pod) *kubeovnv1.IP {
	w.Helper()
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: p.Name + "." + p.Namespace}}
	w.Eventually(func() string {
		if !w.Get(ip) || ip.Spec.IPAddress != address(p) {
			return fmt.Sprintf("IP object of pod %s with %s is %+v", p.Name, address(p), ip.Spec)
		}
		return ""
	})
	return ip
}

// gone waits until a pod has no port, no allocation and no IP object.
func (w world) gone(p *controllertest.Process, was *corev1.Pod) {
	w.Helper()
	name := was.Name + "." + was.Namespace
	w.Eventually(func() string {
		if w.portNow(was) != nil {
			return "port " + name + " is there"
		}
		if _, held := p.Allocator.Lookup(name); held {
			return "allocation " + name + " is there"
		}
		if w.Get(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name}}) {
			return "IP " + name + " is there"
		}
		return ""
	})
}

// agree waits until pods, ports, allocations and IP objects have the same addresses, and checks that none is a duplicate.
func (w world) agree(p *controllertest.Process) {
	w.Helper()
	w.Eventually(func() string {
		var pods corev1.PodList
		var ips kubeovnv1.IPList
		w.Must(w.Client.List(w.Context(), &pods))
		w.Must(w.Client.List(w.Context(), &ips))
		said := map[string]string{}
		for i := range pods.Items {
			said[pods.Items[i].Name+"."+pods.Items[i].Namespace] = address(&pods.Items[i])
		}
		objects := map[string]string{}
		for _, ip := range ips.Items {
			if k8s.NodeOf(&ip) == "" {
				objects[ip.Name] = ip.Spec.IPAddress
			}
		}
		committed := map[string]string{}
		for _, row := range w.Database.Rows("Logical_Switch_Port") {
			if row["type"] == "" {
				fields := strings.Fields(row.Strings("addresses")[0])
				committed[row["name"].(string)] = strings.Join(fields[1:], ",")
			}
		}
		allocated := map[string]string{}
		for name := range said {
			if allocation, ok := p.Allocator.Lookup(name); ok {
				var addresses []string
				for _, a := range allocation.Addresses {
					addresses = append(addresses, a.String())
				}
				allocated[name] = strings.Join(addresses, ",")
			}
		}
		for what, have := range map[string]map[string]string{"IP objects": objects, "ports": committed, "allocations": allocated} {
			if fmt.Sprint(have) != fmt.Sprint(said) {
				return fmt.Sprintf("pods have %v, %s have %v", said, what, have)
			}
		}
		var all []string
		for _, list := range said {
			all = append(all, strings.Split(list, ",")...)
		}
		slices.Sort(all)
		if unique := slices.Compact(slices.Clone(all)); len(unique) != len(all) {
			return fmt.Sprintf("an address is held twice: %v", all)
		}
		return ""
	})
}
