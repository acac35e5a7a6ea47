// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
	"github.com/kiln-net/kiln/internal/trace"
	"github.com/kiln-net/kiln/internal/trace/reader"
)

const (
	scalePods     = 20000
	scalePolicies = 1000
	// The numbers of the pods at both ends.
	scaleFrom, scaleTo = 7, 12008
)

// TestTraceReadsLittleOfALargeCluster has 20,000 pods on the pod network and 1,000 NetworkPolicies. It bounds the requests and bytes that an answer needs, and logs
// its time and memory. It has an API server of its own.
func TestTraceReadsLittleOfALargeCluster(t *testing.T) {
	gate.Skip(t, gate.Long)
	env, err := apiserver.New()
	must.Succeed(t, err)
	_, err = env.Start()
	must.Succeed(t, err)
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := useWorld(t, env)
	w.network("shop", "bank")
	w.fill(env)

	from := trace.End{Pod: client.ObjectKey{Namespace: "shop", Name: fmt.Sprint("pod-", scaleFrom)}}
	for name, to := range map[string]trace.End{
		"pod to pod":          {Pod: client.ObjectKey{Namespace: "bank", Name: fmt.Sprint("pod-", scaleTo)}},
		"pod to IPv4 address": {Address: scaleAddresses(scaleTo)[0]},
		"pod to IPv6 address": {Address: scaleAddresses(scaleTo)[1]},
		"pod to the outside":  {Address: netip.MustParseAddr("203.0.113.9")},
	} {
		q := trace.Query{From: from, To: to, Protocol: trace.TCP, Port: 80}
		scheme, err := reader.Scheme()
		must.Succeed(t, err)
		// A new API server has no caches of the kinds yet: until it has them, it refuses requests for a second.
		_, err = reader.Read(t.Context(), must.Value(client.New(env.Config, client.Options{Scheme: scheme})), q)
		must.Succeed(t, err)
		counted := &counter{}
		config := rest.CopyConfig(env.Config)
		config.QPS, config.Burst = 50, 300
		config.Wrap(func(of http.RoundTripper) http.RoundTripper { counted.RoundTripper = of; return counted })
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		c, err := client.New(config, client.Options{Scheme: scheme})
		must.Succeed(t, err)
		s, err := reader.Read(t.Context(), c, q)
		must.Succeed(t, err)
		read := time.Since(began)
		a := trace.Run(s, q)
		runtime.ReadMemStats(&after)
		if a.Verdict != trace.Delivered {
			t.Errorf("%s: %s: %+v", name, a.Verdict, a)
		}
		requests, bytes := counted.requests.Load(), counted.bytes.Load()
		if requests > 60 || bytes > 20<<20 {
			t.Errorf("%s: %d requests, %d bytes", name, requests, bytes)
		}
		t.Logf("%s: %s, of which %s to read; %d requests, %d KiB; %d MiB allocated", name, time.Since(began), read, requests, bytes>>10, (after.TotalAlloc-before.TotalAlloc)>>20)
	}
}

// counter counts requests, and the bytes of their bodies.
type counter struct {
	http.RoundTripper

	counted         func(*http.Request) bool // nil for all requests
	requests, bytes atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.counted == nil || c.counted(r) {
		c.requests.Add(1)
	}
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = body{response.Body, &c.bytes}
	}
	return response, err
}

type body struct {
	io.ReadCloser
	read *atomic.Int64
}

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}

func scaleAddresses(i int) []netip.Addr {
	n := i + 10
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 16, byte(n >> 8), byte(n)}), netip.MustParseAddr(fmt.Sprintf("fd00:10:16::%x", n))}
}

// fill creates the pods with their IP objects, half of them in each namespace, and the policies. Pods and IP objects go into the server's etcd, in the form of the API: by
// the API server they would take many minutes.
func (w *world) fill(env *apiserver.Server) {
	w.Helper()
	var all []stored
	for i := range scalePods {
		namespace, name := "shop", fmt.Sprint("pod-", i)
		if i >= scalePods/2 {
			namespace = "bank"
		}
		addresses := scaleAddresses(i)
		uid := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
		network := kubeovnv1.PodNetwork{
			UID: uid, Allocated: true, Routed: true, LogicalSwitch: kubeovnv1.DefaultSubnet, LogicalRouter: kubeovnv1.DefaultVpc,
			MAC: []byte{2, 0, 0, 0, byte(i >> 8), byte(i)}, Addresses: addresses,
			CIDRs:    []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")},
			Gateways: []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:10:16::1")},
		}
		pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uid, CreationTimestamp: metav1.Now(), Labels: map[string]string{"app": fmt.Sprint("app-", i%scalePolicies)}, Annotations: network.Annotations(),
		}}
		pod.Spec.NodeName, pod.Spec.Containers = "n1", []corev1.Container{{Name: "c", Image: "i"}}
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, addresses[0].String()
		pod.Status.PodIPs = []corev1.PodIP{{IP: addresses[0].String()}, {IP: addresses[1].String()}}
		ip := &kubeovnv1.IP{
			TypeMeta:   metav1.TypeMeta{APIVersion: kubeovnv1.GroupVersion.String(), Kind: "IP"},
			ObjectMeta: metav1.ObjectMeta{Name: name + "." + namespace, UID: uid, CreationTimestamp: metav1.Now(), Labels: map[string]string{kubeovnv1.LabelSubnet: kubeovnv1.DefaultSubnet}},
			Spec: kubeovnv1.IPSpec{
				PodName: name, Namespace: namespace, Subnet: kubeovnv1.DefaultSubnet, IPAddress: addresses[0].String() + "," + addresses[1].String(),
				V4IPAddress: addresses[0].String(), V6IPAddress: addresses[1].String(),
			},
		}
		all = append(all, store("pods/"+namespace+"/"+name, pod), store("kubeovn.io/ips/"+ip.Name, ip))
	}
	for batch := range slices.Chunk(all, 100) {
		put(w, env.ControlPlane.Etcd.URL.String(), batch)
	}
	scheme, err := reader.Scheme()
	must.Succeed(w, err)
	c, err := client.New(env.Config, client.Options{Scheme: scheme})
	must.Succeed(w, err)
	for i := range scalePolicies {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: fmt.Sprint("p", i)}}
		np.Spec.PodSelector.MatchLabels = map[string]string{"app": fmt.Sprint("app-", i)}
		np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}
		must.Succeed(w, c.Create(w.Context(), np))
	}
}

// stored is a request of etcd's gateway for JSON: keys and values are in base64.
type stored struct {
	Put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"requestPut"`
}

func store(key string, o any) (s stored) {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	s.Put.Key, s.Put.Value = []byte("/registry/"+key), text
	return s
}

func put(w *world, etcd string, batch []stored) {
	w.Helper()
	body, err := json.Marshal(map[string]any{"success": batch})
	must.Succeed(w, err)
	response, err := http.Post(etcd+"/v3/kv/txn", "application/json", bytes.NewReader(body))
	must.Succeed(w, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must.Succeed(w, err)
	if response.StatusCode != http.StatusOK || !strings.Contains(string(text), `"succeeded":true`) {
		w.Fatalf("store objects in etcd: %s: %.300s", response.Status, text)
	}
}
