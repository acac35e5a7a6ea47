// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// apiServer returns a fake API server with objects and the indexes of a Proxy.
func apiServer(objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithObjects(objects...).WithStatusSubresource(&corev1.Node{}).
		WithIndex(&discoveryv1.EndpointSlice{}, indexService, func(client.Object) []string { return nil }).Build()
}

// newProxy returns a Proxy that reads from server and writes to nft.
func newProxy(server client.Reader, nft knftables.Interface) *Proxy {
	return &Proxy{
		Cache: cached{Reader: server}, NFT: nft,
		dirty: map[types.NamespacedName]bool{}, wake: make(chan struct{}, 1), writer: newWriter(nft), pending: pending{},
	}
}

// run runs the loop of a proxy in a bubble of synctest, until the returned function is called.
func run(t *testing.T, p *Proxy) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.loop(ctx)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-ended
	}
}

// Tenants can change Services more often than once in the interval of the periodic checks.
func TestFrequentChangesDoNotPreventThePeriodicChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nft, kubeProxy := knftables.NewFake(knftables.InetFamily, Table), knftables.NewFake(knftables.IPv4Family, proxyTable)
		server := apiServer(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}})
		p := newProxy(server, nft)
		p.KubeProxy = &KubeProxyCheck{Client: server, Node: "here", tables: []kubeProxyTable{{nft: kubeProxy}}}
		defer run(t, p)()
		if !p.writer.intact(t.Context()) {
			t.Fatal("the table was not written at the start")
		}

		tx := nft.NewTransaction()
		tx.Flush(&knftables.Table{})
		must.Succeed(t, nft.Run(t.Context(), tx))
		tx = kubeProxy.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Chain{Name: "services"})
		must.Succeed(t, kubeProxy.Run(t.Context(), tx))
		pause := k8s.Periodic(resync)
		for range 6 {
			p.touch(types.NamespacedName{Namespace: "default", Name: "flapping"})
			time.Sleep(pause / 3) // in the test's fake time
		}

		if !p.writer.intact(t.Context()) {
			t.Error("the flushed table was not written again")
		}
		node := &corev1.Node{}
		must.Succeed(t, server.Get(t.Context(), client.ObjectKey{Name: "here"}, node))
		if c := node.Status.Conditions; len(c) != 1 || c[0].Type != v1alpha1.NodeConditionKubeProxy || c[0].Status != corev1.ConditionTrue {
			t.Errorf("kube-proxy's table is not reported: %+v", c)
		}
	})
}

// refusing is nftables whose next writes fail: all, or the transactions that delete chains, or one chain.
type refusing struct {
	knftables.Interface
	refuses bool
	chains  bool
	chain   string
	runs    int
}

func (r *refusing) Run(ctx context.Context, tx *knftables.Transaction) error {
	const deletion = "delete chain inet " + Table + " "
	if r.runs++; r.refuses || r.chains && strings.Contains(tx.String(), deletion) ||
		r.chain != "" && strings.Contains(tx.String(), deletion+r.chain+"\n") {
		return errors.New("the kernel refuses")
	}
	return r.Interface.Run(ctx, tx)
}

// Each retry writes the whole table, so changes that arrive in the meantime do not cause more of them.
func TestChangesAfterAFailedWriteWaitForTheRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, nft := apiServer(), &refusing{Interface: knftables.NewFake(knftables.InetFamily, Table), refuses: true}
		p := newProxy(server, nft)
		defer run(t, p)()
		const attempts = 10
		for range 20 * attempts {
			p.touch(types.NamespacedName{Namespace: "default", Name: "flapping"})
			time.Sleep(retry / 20)
		}
		synctest.Wait()
		if nft.runs > attempts+2 {
			t.Errorf("%d writes in %s", nft.runs, attempts*retry)
		}
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}}
		s.Spec.ClusterIPs, s.Spec.Ports = []string{"10.96.0.1"}, []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
		must.Succeed(t, server.Create(t.Context(), s))
		p.touch(client.ObjectKeyFromObject(s))
		nft.refuses = false
		time.Sleep(2 * retry)
		if !p.writer.intact(t.Context()) || p.writer.have[client.ObjectKeyFromObject(s)] == nil {
			t.Error("the retry did not write the table with the new Service")
		}
	})
}

// failing is a reader whose next list of one kind fails.
type failing struct {
	client.Reader
	kind client.ObjectList
}

func (f *failing) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if f.kind != nil && reflect.TypeOf(list) == reflect.TypeOf(f.kind) {
		f.kind = nil
		return errors.New("the list failed")
	}
	return f.Reader.List(ctx, list, opts...)
}

// A deleted Service that was never served is in no list and not in the table: only its event reports it.
func TestADeletedServiceFreesItsBudgetAfterAFailedPass(t *testing.T) {
	before := svc.Bounds
	t.Cleanup(func() { svc.Bounds = before })
	for name, kind := range map[string]client.ObjectList{"ServiceCIDRs": &networkingv1.ServiceCIDRList{}, "Services": &corev1.ServiceList{}} {
		t.Run(name, func(t *testing.T) {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "large"}}
			s.Spec.ClusterIPs, s.Spec.Ports = []string{"10.96.0.1"}, []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
			svc.Bounds.Group = svc.Flows(s, nil) - 1
			server := apiServer(s)
			reader := &failing{Reader: server}
			p := newProxy(reader, knftables.NewFake(knftables.InetFamily, Table))
			p.CIDRs.Reader = reader
			must.Succeed(t, p.sync(t.Context(), true))
			if p.budget.Refused() != 1 {
				t.Fatalf("%d Services are refused, want 1", p.budget.Refused())
			}
			must.Succeed(t, server.Delete(t.Context(), s))
			p.touch(client.ObjectKeyFromObject(s))
			reader.kind = kind
			if err := p.sync(t.Context(), true); err == nil {
				t.Fatal("the pass did not fail")
			}
			must.Succeed(t, p.sync(t.Context(), true))
			if p.budget.Refused() != 0 {
				t.Errorf("%d Services are refused after the deletion", p.budget.Refused())
			}
		})
	}
}

// A pass can fail after it has written the table. The next pass forgets the clients of the fronts that the failed pass wrote or gave up,
// also in a new process.
func TestFrontsOfAPassThatFailedAfterItsWriteAreEnded(t *testing.T) {
	for name, crash := range map[string]bool{"the same process": false, "a new process": true} {
		t.Run(name, func(t *testing.T) { frontsOfAFailedPassAreEnded(t, crash) })
	}
}

func frontsOfAFailedPassAreEnded(t *testing.T, crash bool) {
	t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "moved"}}
	s.Spec.ClusterIPs, s.Spec.Ports = []string{"10.96.0.1"}, []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	server, nft := apiServer(s), &unlisted{Interface: knftables.NewFake(knftables.InetFamily, Table)}
	p := newProxy(server, nft)
	must.Succeed(t, p.sync(t.Context(), true))
	move := func(address string) {
		s.Spec.ClusterIPs = []string{address}
		must.Succeed(t, server.Update(t.Context(), s))
		p.touch(client.ObjectKeyFromObject(s))
	}
	tx := nft.NewTransaction()
	for _, front := range []string{"10.96.0.1", "10.96.0.2"} {
		tx.Add(&knftables.Element{Map: "affinity4", Key: []string{front, "tcp", "80", "192.0.2.1"}, Value: []string{"10.16.0.2", "80"}})
	}
	must.Succeed(t, nft.Run(t.Context(), tx))
	nft.fails = true
	for range 3 {
		move("10.96.0.2")
		if err := p.sync(t.Context(), true); err == nil {
			t.Fatal("the pass did not fail")
		}
	}
	if n := len(p.pending); n != 2 {
		t.Errorf("%d pending fronts, want one for each address", n)
	}
	nft.fails = false
	if crash {
		var err error
		p = newProxy(server, nft)
		p.pending, err = inheritedFronts(t.Context(), nft)
		must.Succeed(t, err)
	}
	move("10.96.0.3")
	must.Succeed(t, p.sync(t.Context(), true))
	list, err := nft.ListElements(t.Context(), "map", "affinity4")
	must.Succeed(t, err)
	if len(list) > 0 {
		t.Errorf("the clients of %v are left", list[0].Key)
	}
}

// A front that a Service gave up is in the table of nftables until a process that starts later has had the time to end its connections.
func TestReleasedFrontsAreInherited(t *testing.T) {
	nft, err := knftables.New(knftables.InetFamily, Table)
	must.Succeed(t, err)
	w := newWriter(nft)
	must.Succeed(t, w.rewrite(t.Context(), nil, nil, nil))
	before, want := map[types.NamespacedName][]pool{}, pending{}
	for i, clusterIP := range []string{"10.96.0.7", "fd00:10:96::7"} {
		for _, address := range []netip.Addr{netip.MustParseAddr(clusterIP), {}} {
			p := pool{proto: "udp", family: families[i], fronts: []front{{address: address, port: 53}}}
			before[types.NamespacedName{Name: p.place(p.fronts[0]).key() + p.family.suffix}] = []pool{p}
			want[p.place(p.fronts[0])] = true
		}
	}
	released := pending{}
	released.record(before)
	must.Succeed(t, w.update(t.Context(), difference{}, released))
	for _, step := range []func() error{
		func() error { return w.update(t.Context(), difference{}, released) }, // renewed
		func() error { return newWriter(nft).rewrite(t.Context(), nil, nil, nil) },
	} {
		must.Succeed(t, step())
		got, err := inheritedFronts(t.Context(), nft)
		must.Succeed(t, err)
		if !maps.Equal(got, want) {
			t.Errorf("inherited fronts %v, want %v", got, want)
		}
	}
}

// Tenants can release fronts without a pause.
func TestReleasedFrontsAreBounded(t *testing.T) {
	before := maxReleased
	t.Cleanup(func() { maxReleased = before })
	maxReleased = 300
	nft := knftables.NewFake(knftables.InetFamily, Table)
	w := newWriter(nft)
	must.Succeed(t, w.rewrite(t.Context(), nil, nil, nil))
	for range 2 { // the second time the elements are renewed
		for n := range 2 {
			fronts := pending{}
			for i := range maxReleased {
				address := netip.AddrFrom4([4]byte{10, 96 + byte(n), byte(i >> 8), byte(i)})
				fronts[place{families[0], "udp", netip.AddrPortFrom(address, 53)}] = true
			}
			must.Succeed(t, w.update(t.Context(), difference{}, fronts))
		}
		list, err := nft.ListElements(t.Context(), "set", "released4")
		must.Succeed(t, err)
		if len(list) != maxReleased {
			t.Errorf("%d elements, want %d", len(list), maxReleased)
		}
	}
}

// unlisted is nftables that cannot list elements for some time.
type unlisted struct {
	knftables.Interface
	fails bool
}

func (u *unlisted) ListElements(ctx context.Context, kind, name string) ([]*knftables.Element, error) {
	if u.fails {
		return nil, errors.New("the list failed")
	}
	list, err := u.Interface.ListElements(ctx, kind, name)
	for _, e := range list { // nft(8) lists the parts of a key, the fake what was added
		e.Key = strings.Split(strings.Join(e.Key, " . "), " . ")
	}
	return list, err
}
