// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// statefulSet creates a StatefulSet; the test creates its pods.
func (w world) statefulSet(name string, start, replicas int32) *appsv1.StatefulSet {
	w.Helper()
	labels := map[string]string{"app": name}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas,
			Ordinals: &appsv1.StatefulSetOrdinals{Start: start},
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			},
		},
	}
	w.Create(set)
	return set
}

// replica returns a pod of a StatefulSet on a node.
func replica(set *appsv1.StatefulSet, ordinal int, node string, annotations ...string) *corev1.Pod {
	p := newPod(set.Namespace, fmt.Sprintf("%s-%d", set.Name, ordinal), annotations...)
	p.Spec.NodeName = node
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	return p
}

// away waits until a deleted pod has no port, but still its allocation and its IP object.
func (w world) away(p *controllertest.Process, was *corev1.Pod) {
	w.Helper()
	name := was.Name + "." + was.Namespace
	w.Eventually(func() string {
		ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name}}
		allocation, held := p.Allocator.Lookup(name)
		switch {
		case w.portNow(was) != nil:
			return "port " + name + " is there"
		case !held || joined(allocation.Addresses) != address(was):
			return fmt.Sprintf("%s holds %v, not %s", name, allocation, address(was))
		case !w.Get(ip) || ip.Spec.IPAddress != address(was) || ip.Spec.NodeName != "":
			return fmt.Sprintf("IP object %+v", ip)
		}
		if _, located := ip.Labels["ovn.kubernetes.io/node-name"]; located {
			return fmt.Sprintf("IP object has labels %v", ip.Labels)
		}
		return ""
	})
}

// losePorts removes all ports, like a database restored from an old backup. No controller may run.
func (w world) losePorts() {
	w.Database.Transact(nbtest.Op{
		"op": "update", "table": "Logical_Switch", "where": []any{}, "row": map[string]any{"ports": []any{"set", []any{}}},
	})
}

func joined[T fmt.Stringer](values []T) string {
	var parts []string
	for _, v := range values {
		parts = append(parts, v.String())
	}
	return strings.Join(parts, ",")
}

func TestAPodOfAStatefulSetKeepsItsAddress(t *testing.T) {
	for protocol, cidr := range map[string]string{
		"IPv4": "10.16.0.0/24",
		"IPv6": "fd00:10:16::/112",
		"Dual": "10.16.0.0/24,fd00:10:16::/112",
	} {
		t.Run(protocol, func(t *testing.T) {
			w := newWorld(t)
			w.subnet("ovn-default", cidr)
			process := w.start()
			set := w.statefulSet("db", 0, 2)
			first := replica(set, 1, "n1")
			w.Create(first)
			was := w.allocated(first)
			if ip := w.ipObject(first); ip.Spec.PodType != "StatefulSet" || ip.Spec.NodeName != "n1" {
				t.Errorf("IP object has %+v", ip.Spec)
			}
			for round, restart := range []bool{false, true, false} {
				w.Delete(first)
				w.away(process, first)
				if restart {
					process.Stop()
					w.losePorts()
					process = w.start()
					w.away(process, first)
				}
				w.pod("default", fmt.Sprint("other-", round)) // does not get the retained address
				first = replica(set, 1, w.Nodes[(round+1)%2])
				w.Create(first)
				is := w.allocated(first)
				if joined(is.Addresses) != joined(was.Addresses) || is.MAC.String() != was.MAC.String() {
					t.Errorf("round %d: the pod has %v %s, it had %v %s", round, is.Addresses, is.MAC, was.Addresses, was.MAC)
				}
				if chassis := w.port(first)["options"].(map[string]string)["requested-chassis"]; chassis != first.Spec.NodeName {
					t.Errorf("round %d: the port is at %s, not %s", round, chassis, first.Spec.NodeName)
				}
				w.Eventually(func() string {
					if ip := w.ipObject(first); ip.Spec.NodeName != first.Spec.NodeName || ip.Labels["ovn.kubernetes.io/node-name"] != first.Spec.NodeName {
						return fmt.Sprintf("IP object has %+v, labels %v", ip.Spec, ip.Labels)
					}
					return ""
				})
			}
			w.agree(process)
		})
	}
}

func TestAStatefulSetPodReplacedWhileTheControllerIsDownKeepsItsAddress(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	set := w.statefulSet("db", 0, 3)
	pods := make([]*corev1.Pod, 3)
	for i := range pods {
		pods[i] = replica(set, i, "n1")
		w.Create(pods[i])
		w.allocated(pods[i])
	}
	w.agree(process)
	process.Stop()
	w.Delete(pods[0], pods[1])
	w.losePorts() // so that only IP objects record the deleted pods
	next := replica(set, 0, "n2")
	other := newPod("default", "other")
	w.Create(next, other)
	process = w.start()
	w.allocated(next)
	w.allocated(other)
	if address(next) != address(pods[0]) {
		t.Errorf("the pod has %s, it had %s", address(next), address(pods[0]))
	}
	w.away(process, pods[1])
}

func TestRetainedAddressesAreFreedWhenTheStatefulSetShrinks(t *testing.T) {
	for name, end := range map[string]func(w world, set *appsv1.StatefulSet){
		"scaled down": func(w world, set *appsv1.StatefulSet) {
			w.Change(set, func() { *set.Spec.Replicas = 2 }) // ordinals 5 and 6 remain
		},
		"first ordinal moved": func(w world, set *appsv1.StatefulSet) {
			w.Change(set, func() { set.Spec.Ordinals.Start = 8 })
		},
		"deleted": func(w world, set *appsv1.StatefulSet) { w.Delete(set) },
		"deleted in the foreground": func(w world, set *appsv1.StatefulSet) {
			w.Must(w.Client.Delete(w.Context(), set, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		},
	} {
		for _, down := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, controller down %v", name, down), func(t *testing.T) {
				w := newWorld(t)
				w.subnet("ovn-default", "10.16.0.0/24")
				process := w.start()
				set := w.statefulSet("db", 5, 3)
				p := replica(set, 7, "n1")
				w.Create(p)
				w.allocated(p)
				w.Delete(p)
				w.away(process, p)
				if down {
					process.Stop()
				}
				end(w, set)
				if down {
					process = w.start()
				}
				w.gone(process, p)
				if w.Get(set) && set.DeletionTimestamp != nil { // foreground deletion: the test has no garbage collector
					set.Finalizers = nil
					w.Must(w.Client.Update(w.Context(), set))
				}
			})
		}
	}
}

func TestAStatefulSetPodThatAsksForSomethingElseGetsIt(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.subnet("other", "10.17.0.0/24")
	process := w.start()
	set := w.statefulSet("db", 0, 1)
	for _, annotations := range [][]string{
		nil, {"ip_address", "10.16.0.99"}, {"logical_switch", "other"}, {"logical_switch", "other", "mac_address", "02:00:00:00:00:01"},
	} {
		p := replica(set, 0, "n1", annotations...)
		w.Create(p)
		got := w.allocated(p)
		for i := 0; i+1 < len(annotations); i += 2 {
			key := kubeovnv1.Annotation(annotations[i]).Key()
			if p.Annotations[key] != annotations[i+1] {
				t.Errorf("%v: the pod has %+v", annotations, got)
			}
		}
		w.agree(process)
		w.Delete(p)
		w.away(process, p)
	}
}

func reservation(name string, spec kubeovnv1.IPSpec, labels ...string) *kubeovnv1.IP {
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Spec: spec}
	for _, l := range labels {
		ip.Labels["ovn.kubernetes.io/ip_reserved"] = l
	}
	return ip
}

// held waits until a name holds the addresses, or no allocation if addresses is empty.
func (w world) held(p *controllertest.Process, name, addresses string) {
	w.Helper()
	w.Eventually(func() string {
		allocation, _ := p.Allocator.Lookup(name)
		if got := joined(allocation.Addresses); got != addresses {
			return fmt.Sprintf("%s holds %q, not %q", name, got, addresses)
		}
		return ""
	})
}

func TestAReservedIPIsForThePodOfItsName(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	process := w.start()
	once := reservation("once.default", kubeovnv1.IPSpec{
		PodName: "once", Namespace: "default", Subnet: "ovn-default", V4IPAddress: "10.16.0.40", V6IPAddress: "FD00:10:16::40",
		MACAddress: "02:00:00:00:00:40",
	})
	always := reservation("always.default", kubeovnv1.IPSpec{
		PodName: "always", Namespace: "default", Subnet: "ovn-default", IPAddress: "10.16.0.41",
	}, "true")
	any := reservation("any", kubeovnv1.IPSpec{Subnet: "ovn-default"})
	w.Create(once, always, any)
	w.held(process, "once.default", "10.16.0.40,fd00:10:16::40")
	w.held(process, "always.default", "10.16.0.41")
	w.Eventually(func() string {
		if w.Get(any); any.Spec.V4IPAddress == "" || any.Spec.V6IPAddress == "" || any.Spec.MACAddress == "" {
			return fmt.Sprintf("%+v is not filled in", any.Spec)
		}
		return ""
	})
	process.Stop()
	process = w.start()
	w.held(process, "once.default", "10.16.0.40,fd00:10:16::40")
	w.held(process, "any", any.Spec.IPAddress)
	taken := newPod("default", "taken", "ip_address", "10.16.0.41")
	w.Create(taken)
	w.warned(taken, "taken by always.default")

	one, two := w.pod("default", "once"), w.pod("default", "always")
	if address(one) != "10.16.0.40,fd00:10:16::40" || one.Annotations["ovn.kubernetes.io/mac_address"] != "02:00:00:00:00:40" {
		t.Errorf("pod once has %v", one.Annotations)
	}
	if address(two) != "10.16.0.41" {
		t.Errorf("pod always has %s", address(two))
	}
	w.Delete(one, two)
	w.gone(process, one)
	w.away(process, two)

	w.Delete(always, any)
	w.held(process, "any", "")
	w.allocated(taken)
}

func TestAReservationThatComesLateIsServedWhenItCan(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	holder := w.pod("default", "holder", "ip_address", "10.16.0.50")
	late := reservation("late", kubeovnv1.IPSpec{Subnet: "ovn-default", V4IPAddress: "10.16.0.50"})
	outside := reservation("outside", kubeovnv1.IPSpec{Subnet: "ovn-default", V4IPAddress: "10.99.0.1"})
	nowhere := reservation("nowhere", kubeovnv1.IPSpec{V4IPAddress: "10.16.0.9"})
	w.Create(late, outside, nowhere)
	w.hasEvent(late, "address 10.16.0.50 is taken by holder.default")
	w.hasEvent(outside, "10.99.0.1 is not one")
	w.hasEvent(nowhere, "spec.subnet is empty")
	c := w.Says(late, kubeovnv1.ConditionReady, metav1.ConditionFalse, "Waiting", "address 10.16.0.50 is taken by holder.default: ask for another one")
	mistakes.Sees(t, 47, c.Message)
	w.Says(outside, kubeovnv1.ConditionReady, metav1.ConditionFalse, "10.99.0.1 is not one")
	w.Says(nowhere, kubeovnv1.ConditionReady, metav1.ConditionFalse, "spec.subnet is empty")
	w.Delete(holder)
	w.held(process, "late", "10.16.0.50")
	w.Ready(late)
}

// TestAReservationReportsItsPod: the pod of the reservation's name has other addresses, or waits for the reserved ones.
func TestAReservationReportsItsPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.Start(stepsAt(never)) // writes no IP object of the pod itself
	w.pod("default", "runs", "ip_address", "10.16.0.60")
	late := reservation("runs.default", kubeovnv1.IPSpec{PodName: "runs", Namespace: "default", Subnet: "ovn-default", V4IPAddress: "10.16.0.62"})
	w.Create(late)
	w.Says(late, kubeovnv1.ConditionReady, metav1.ConditionFalse, "the pod has 10.16.0.60 of subnet ovn-default already: delete the pod for this to count")

	process.Stop()
	w.start()
	holder, waits := w.pod("default", "holder", "ip_address", "10.16.0.61"), newPod("default", "waits")
	taken := reservation("waits.default", kubeovnv1.IPSpec{PodName: "waits", Namespace: "default", Subnet: "ovn-default", V4IPAddress: "10.16.0.61"})
	w.Create(taken, waits)
	w.Says(taken, kubeovnv1.ConditionReady, metav1.ConditionFalse, "address 10.16.0.61 is taken by holder.default")
	w.Delete(holder)
	if got := w.allocated(waits).Addresses; fmt.Sprint(got) != "[10.16.0.61]" {
		t.Errorf("the pod of the reservation has %v", got)
	}
	w.Ready(taken)
}

func TestWhatAnIPIsOfCannotChange(t *testing.T) {
	w := newWorld(t)
	ip := reservation("fixed", kubeovnv1.IPSpec{Subnet: "a", V4IPAddress: "10.16.0.50"})
	w.Create(ip)
	for _, change := range []func(){
		func() { ip.Spec.Subnet = "b" },
		func() { ip.Spec.Subnet = "" },
		func() { ip.Spec.V4IPAddress = "10.16.0.51" },
	} {
		before := ip.DeepCopy()
		change()
		err := w.Client.Patch(w.Context(), ip, client.MergeFrom(before))
		if err == nil || !strings.Contains(err.Error(), "cannot change once it is set") {
			t.Errorf("patch: %v", err)
		}
		ip = before
	}
	w.Change(ip, func() { ip.Spec.V6IPAddress, ip.Spec.NodeName = "fd00::1", "n1" })
	w.Change(ip, func() { ip.Spec.NodeName = "" })
}

// hasEvent waits for an event on an IP object.
func (w world) hasEvent(ip *kubeovnv1.IP, text string) {
	w.Helper()
	w.Eventually(func() string {
		var list eventsv1.EventList
		w.Must(w.Client.List(w.Context(), &list))
		for _, e := range list.Items {
			if e.Regarding.UID == ip.UID && strings.Contains(e.Note, text) {
				return ""
			}
		}
		return fmt.Sprintf("no event on IP %s says %q", ip.Name, text)
	})
}

// The test deletes and creates pods while the controller is stopped and started at any point of its work.
func TestStatefulSetPodsKeepTheirAddressesHoweverOftenTheControllerIsKilled(t *testing.T) {
	const pods, rounds, restarts = 6, 12, 8
	drawn := seed.New(t)
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/28,fd00:10:16::/124")
	process := w.start()
	set := w.statefulSet("db", 0, pods)
	had := make([]string, pods)
	for i := range pods {
		p := replica(set, i, "n1")
		w.Create(p)
		w.allocated(p)
		had[i] = address(p)
	}
	var wg sync.WaitGroup
	for i := range pods {
		wg.Go(func() {
			random := seed.Rand(drawn, uint64(2+i))
			for round := range rounds {
				err := w.Client.Delete(w.Context(), replica(set, i, "n1"), client.GracePeriodSeconds(0))
				<-time.After(time.Duration(random.IntN(80)) * time.Millisecond)
				again := w.Client.Create(w.Context(), replica(set, i, w.Nodes[round%2]))
				if err := errors.Join(client.IgnoreNotFound(err), client.IgnoreAlreadyExists(again)); err != nil {
					w.Error(err)
				}
				<-time.After(time.Duration(random.IntN(80)) * time.Millisecond)
			}
		})
	}
	random := seed.Rand(drawn, 1)
	for range restarts {
		<-time.After(time.Duration(random.IntN(300)) * time.Millisecond)
		process.Stop()
		process = w.start()
		taker := newPod("default", "taker") // would get an address that was freed by mistake
		w.Create(taker)
		w.allocated(taker)
		w.Delete(taker)
	}
	wg.Wait()
	for i := range pods {
		p := replica(set, i, "n1")
		if w.allocated(p); address(p) != had[i] {
			t.Errorf("pod %d has %s, it had %s", i, address(p), had[i])
		}
	}
	w.gone(process, newPod("default", "taker"))
	w.agree(process)
}
