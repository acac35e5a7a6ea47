// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/ippool"
	"github.com/kiln-net/kiln/controllers/pod"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type world struct{ *controllertest.World }

func (w world) start() *controllertest.Process {
	w.Helper()
	return w.startWith(0)
}

// startUnmeasured starts a process that never updates the use in status. The passes for these updates, a second after each change, would
// hide a missing event.
func (w world) startUnmeasured() *controllertest.Process {
	w.Helper()
	return w.startWith(time.Hour)
}

func (w world) startWith(usageDelay time.Duration) *controllertest.Process {
	w.Helper()
	var pods *pod.Reconciler
	return w.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			pods = networktest.Pods(p)
			return p.Run(ctx, pods, &ippool.Reconciler{
				Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Pools: p.Pools, Recorder: p.Recorder, Gate: p.Gate,
				UsageDelay: usageDelay,
			})
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			return pods.Restore(ctx, p.Manager.GetAPIReader())
		},
	})
}

func newWorld(t *testing.T) world {
	w := world{controllertest.New(t)}
	w.Subnet("ovn-default", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/24,fd00:10:16::/112" })
	return w
}

func (w world) pool(name string, namespaces []string, ips ...string) *kubeovnv1.IPPool {
	w.Helper()
	pool := &kubeovnv1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.IPPoolSpec{Subnet: "ovn-default", Namespaces: namespaces, IPs: ips},
	}
	w.Create(pool)
	return pool
}

func (w world) pod(name string, annotations ...string) *corev1.Pod {
	w.Helper()
	p := newPod(name, annotations...)
	w.Create(p)
	return p
}

func newPod(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Annotations[kubeovnv1.Annotation(annotations[i]).Key()] = annotations[i+1]
	}
	return p
}

// has waits until a pod has one of these addresses, and returns it.
func (w world) has(p *corev1.Pod, addresses ...string) string {
	w.Helper()
	var got string
	w.Eventually(func() string {
		w.Get(p)
		got = ""
		if p.Annotations["ovn.kubernetes.io/allocated"] == "true" {
			got = strings.Split(p.Annotations["ovn.kubernetes.io/ip_address"], ",")[0]
		}
		if !slices.Contains(addresses, got) {
			return fmt.Sprintf("pod %s has %q, want one of %v", p.Name, got, addresses)
		}
		return ""
	})
	return got
}

func (w world) used(pool *kubeovnv1.IPPool, using string, available float64) {
	w.Helper()
	w.Eventually(func() string {
		if w.Get(pool); pool.Status.V4UsingIPRange != using || pool.Status.V4AvailableIPs != available {
			return fmt.Sprintf("pool %s: %+v", pool.Name, pool.Status)
		}
		return ""
	})
}

func TestPoolsAreForPodsThatNameThemAndForTheirNamespaces(t *testing.T) {
	w := newWorld(t)
	named := w.pool("named", nil, "10.16.0.2..10.16.0.3")
	process := w.start()
	w.Ready(named)
	plain := w.pod("plain")
	w.has(plain, "10.16.0.4") // the first address outside of all pools
	one := w.pod("one", "ip_pool", "named")
	w.has(one, "10.16.0.2")
	w.used(named, "10.16.0.2", 1)

	bound := w.pool("bound", []string{"default"}, "10.16.0.40", "10.16.0.41", "fd00:10:16::40/127")
	w.Ready(bound)
	first, second, third := w.pod("first"), w.pod("second"), w.pod("third")
	pods := []*corev1.Pod{first, second, third}
	w.haveAll(pods, "", "10.16.0.40", "10.16.0.41")
	w.used(bound, "10.16.0.40-10.16.0.41", 0)
	for _, p := range pods {
		if addressOf(p) == "" {
			w.Event(p, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: "AcquireAddressFailed"})
		}
	}
	process.Stop()
	w.start()
	w.used(bound, "10.16.0.40-10.16.0.41", 0)
	w.haveAll(pods, "", "10.16.0.40", "10.16.0.41")
	i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return addressOf(p) != "" })
	w.Delete(pods[i]) // the waiting pod gets its address
	w.haveAll(slices.Delete(pods, i, i+1), "10.16.0.40", "10.16.0.41")
	w.used(bound, "10.16.0.40-10.16.0.41", 0)
}

// addressOf returns the IPv4 address of a pod as of its last read.
func addressOf(p *corev1.Pod) string {
	return strings.Split(p.Annotations["ovn.kubernetes.io/ip_address"], ",")[0]
}

// haveAll waits until these pods together have these IPv4 addresses, sorted as strings, "" for a pod without one.
func (w world) haveAll(pods []*corev1.Pod, addresses ...string) {
	w.Helper()
	w.Eventually(func() string {
		var got []string
		for _, p := range pods {
			w.Get(p)
			got = append(got, addressOf(p))
		}
		if slices.Sort(got); !slices.Equal(got, addresses) {
			return fmt.Sprintf("the pods have %q, want %q", got, addresses)
		}
		return ""
	})
}

func TestAListOfAddresses(t *testing.T) {
	w := newWorld(t)
	w.start()
	list := "10.16.0.50,10.16.0.51"
	a, b := w.pod("a", "ip_pool", list), w.pod("b", "ip_pool", list)
	x, y := w.has(a, "10.16.0.50", "10.16.0.51"), w.has(b, "10.16.0.50", "10.16.0.51")
	if x == y {
		t.Errorf("both have %s", x)
	}
	c := w.pod("c", "ip_pool", list)
	w.Delete(a)
	w.has(c, x)
	pair := w.pod("pair", "ip_pool", "10.16.0.60,fd00:10:16::60;10.16.0.61,fd00:10:16::61")
	w.has(pair, "10.16.0.60")
	if got := pair.Annotations["ovn.kubernetes.io/ip_address"]; got != "10.16.0.60,fd00:10:16::60" {
		t.Errorf("the pod has %s", got)
	}
}

func TestTheOlderOfTwoOverlappingPoolsIsApplied(t *testing.T) {
	w := newWorld(t)
	older := w.pool("a-older", nil, "10.16.0.2..10.16.0.9")
	younger := w.pool("b-younger", nil, "10.16.0.9..10.16.0.12")
	outside := w.pool("outside", nil, "10.99.0.1")
	w.startUnmeasured()
	w.Ready(older)
	w.Says(younger, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "older IPPool a-older")
	w.Says(outside, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "outside of subnet ovn-default")
	w.Change(older, func() { older.Spec.IPs = []string{"10.16.0.2..10.16.0.8"} })
	w.Ready(younger)
	w.used(younger, "", 4)
}

func TestAPoolGoesOnceItsAddressesAreFree(t *testing.T) {
	w := newWorld(t)
	pool := w.pool("p", nil, "10.16.0.2")
	pool2 := w.pool("q-set", nil, "10.16.0.8..10.16.0.11", "fd00:10:16::8")
	w.start()
	w.Ready(pool)
	holder := w.pod("holder", "ip_pool", "p")
	w.has(holder, "10.16.0.2")
	w.Must(w.Client.Delete(w.Context(), pool))
	w.Says(pool, kubeovnv1.ConditionReady, metav1.ConditionFalse, "10.16.0.2 (holder.default)")
	w.Delete(holder)
	w.Eventually(func() string {
		if w.Get(pool) {
			return "the pool is there"
		}
		return ""
	})

	w.Change(pool2, func() { pool2.Spec.EnableAddressSet = true })
	w.Eventually(func() string {
		for _, row := range w.Database.Rows("Address_Set") {
			if row["name"] == "q.set" {
				got := row.Strings("addresses")
				slices.Sort(got)
				if strings.Join(got, " ") == "10.16.0.8/30 fd00:10:16::8" {
					return ""
				}
			}
		}
		return fmt.Sprintf("address sets are %v", w.Database.Rows("Address_Set"))
	})
	w.Must(w.Client.Delete(w.Context(), pool2))
	w.Eventually(func() string {
		if slices.Contains(w.Database.Names("Address_Set"), "q.set") {
			return "the address set is there"
		}
		return ""
	})
}

// A user may remove the finalizer by hand. Then the pool's addresses are available to all pods again.
func TestAPoolThatIsTornAwayGivesItsAddressesBack(t *testing.T) {
	w := newWorld(t)
	pool := w.pool("torn", nil, "10.16.0.2..10.16.0.3")
	process := w.start()
	w.Ready(pool)
	user := w.has(w.pod("user", "ip_pool", "torn"), "10.16.0.2", "10.16.0.3")
	w.Delete(pool)
	w.Get(pool)
	w.LetGo(pool)
	w.Gone(pool)
	w.Eventually(func() string {
		if pools := process.Allocator.Pools("ovn-default"); len(pools) > 0 {
			return fmt.Sprintf("the allocator still has %v", pools)
		}
		return ""
	})
	other := map[string]string{"10.16.0.2": "10.16.0.3", "10.16.0.3": "10.16.0.2"}[user]
	w.has(w.pod("plain", "ip_address", other), other)
}

func TestPoolsWhoseAddressSetsWouldHaveOneName(t *testing.T) {
	w := newWorld(t)
	older := w.pool("a-b", nil, "10.16.0.8")
	w.Change(older, func() { older.Spec.EnableAddressSet = true })
	younger := w.pool("a.b", nil, "10.16.0.9")
	process := w.startUnmeasured()
	w.publishes("a.b", "10.16.0.8")
	w.Ready(younger) // its own addresses are not affected
	w.Change(younger, func() { younger.Spec.EnableAddressSet = true })
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, "older IPPool a-b")
	w.has(w.pod("p", "ip_pool", "a.b"), "10.16.0.9")
	w.publishes("a.b", "10.16.0.8")

	w.RestoresRows("IPPool//a-b")
	w.Change(older, func() { older.Spec.EnableAddressSet = false })
	w.Ready(younger)
	w.publishes("a.b", "10.16.0.9")
	w.Change(older, func() { older.Spec.EnableAddressSet = true })
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, "older IPPool a-b")
	w.publishes("a.b", "10.16.0.8")
	w.Must(w.Client.Delete(w.Context(), older))
	w.publishes("a.b", "10.16.0.9")

	process.Stop()
	w.Get(younger)
	w.LetGo(younger)
	w.Delete(younger)
	w.startUnmeasured()
	w.NoRows("IPPool//a.b")
}

// publishes waits for an address set with one address.
func (w world) publishes(set, address string) {
	w.Helper()
	w.Eventually(func() string {
		for _, row := range w.Database.Rows("Address_Set") {
			if row["name"] == set && slices.Equal(row.Strings("addresses"), []string{address}) {
				return ""
			}
		}
		return fmt.Sprintf("address sets are %v", w.Database.Rows("Address_Set"))
	})
}

func TestWhatElseAPodOfAPoolAsksFor(t *testing.T) {
	w := newWorld(t)
	w.pool("both", nil, "10.16.0.20..10.16.0.21", "fd00:10:16::20/127")
	w.start()
	v6 := w.pod("v6", "ip_pool", "both", "ip_family", "ipv6")
	if got := w.has(v6, "fd00:10:16::20", "fd00:10:16::21"); v6.Annotations["ovn.kubernetes.io/ip_address"] != got {
		t.Errorf("the pod of one family has %s", v6.Annotations["ovn.kubernetes.io/ip_address"])
	}
	mac := w.pod("mac", "ip_pool", "both", "mac_address", "02:00:00:00:00:99")
	w.has(mac, "10.16.0.20")
	if got := mac.Annotations["ovn.kubernetes.io/mac_address"]; got != "02:00:00:00:00:99" {
		t.Errorf("the pod has MAC address %s", got)
	}
	one := w.pod("one", "ip_pool", "10.16.0.60,10.16.0.61", "ip_family", "ipv4", "mac_address", "02:00:00:00:00:9a")
	w.has(one, "10.16.0.60")
	if got := one.Annotations["ovn.kubernetes.io/ip_address"]; got != "10.16.0.60" {
		t.Errorf("the pod of one family has %s", got)
	}
}

func TestAPodOfAStatefulSetKeepsItsAddressOfAPool(t *testing.T) {
	w := newWorld(t)
	pool := w.pool("both", nil, "10.16.0.20..10.16.0.29", "fd00:10:16::20/124")
	process := w.start()
	w.Ready(pool)
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			},
		},
	}
	w.Create(set)
	of := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	}
	asks := map[string][]string{
		"db-0": {"ip_pool", "both", "ip_family", "ipv6"},
		"db-1": {"ip_pool", "both", "mac_address", "02:00:00:00:00:99"},
	}
	was := map[string]string{}
	for _, restart := range []bool{false, true, false} {
		for name, annotations := range asks {
			p := newPod(name, annotations...)
			of(p)
			w.Create(p)
			w.Eventually(func() string {
				if w.Get(p); p.Annotations["ovn.kubernetes.io/allocated"] != "true" {
					return "pod " + name + " has no address"
				}
				return ""
			})
			is := p.Annotations["ovn.kubernetes.io/ip_address"] + " " + p.Annotations["ovn.kubernetes.io/mac_address"]
			if was[name] != "" && was[name] != is {
				t.Errorf("pod %s has %s, it had %s", name, is, was[name])
			}
			was[name] = is
			w.Delete(p)
		}
		if restart {
			process.Stop()
			process = w.start()
		}
	}
	if !strings.HasPrefix(was["db-0"], "fd00:10:16::2") || strings.Contains(was["db-0"], ",") {
		t.Errorf("the pod of one family has %s", was["db-0"])
	}
	if !strings.HasPrefix(was["db-1"], "10.16.0.2") || !strings.HasSuffix(was["db-1"], " 02:00:00:00:00:99") {
		t.Errorf("the pod with a MAC address of its own has %s", was["db-1"])
	}
}
