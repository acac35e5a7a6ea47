// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficmirror

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestPortsAreSharedByNamespaces(t *testing.T) {
	// The fields of a pod are namespace/name, and "static" for a mirror pod; the first is the oldest.
	for _, c := range []struct {
		name string
		pods []string
		most int
		want string
	}{
		{"all have place", []string{"a/1", "a/2 static", "b/1"}, 3, "1.a 2.a 1.b"},
		{"one namespace", []string{"a/1", "a/2", "a/3"}, 2, "1.a 2.a"},
		{"many pods of one namespace, and a younger one of another", []string{"a/1", "a/2", "a/3", "b/1"}, 2, "1.a 1.b"},
		{"equal shares, of the oldest", []string{"a/1", "a/2", "a/3", "b/1", "b/2", "b/3"}, 4, "1.a 2.a 1.b 2.b"},
		{"a namespace that needs less than its share", []string{"a/1", "a/2", "a/3", "a/4", "b/1"}, 4, "1.a 2.a 3.a 1.b"},
		{"mirror pods last, in any number of namespaces", []string{"x/1 static", "y/1 static", "z/1 static", "a/1", "a/2"}, 3, "1.x 1.a 2.a"},
		{"a virtual machine with two pods", []string{"a/1", "b/1", "a/1"}, 5, "1.a 1.b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ports []port
			for i, text := range c.pods {
				fields := strings.Fields(text)
				namespace, name, _ := strings.Cut(fields[0], "/")
				ports = append(ports, port{
					Port: kubeovnv1.NewPort(namespace, name, kubeovnv1.ProviderOVN), created: time.Unix(int64(i), 0), static: len(fields) > 1,
				})
			}
			var got []string
			for _, p := range share(distinct(ports), c.most) {
				got = append(got, p.Name)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("ports %v, want %s", got, c.want)
			}
		})
	}
}

func TestOnlyPodsThatNodesReachAreSinks(t *testing.T) {
	sinks := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true, netip.MustParseAddr("2001:db8::1"): true}
	pod := func(addresses, vpc, physical string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{keyAddresses: addresses, keyVpc: vpc, keyProviderNetwork: physical}}}
	}
	for _, c := range []struct {
		pod  *corev1.Pod
		want bool
	}{
		{pod("192.0.2.1,2001:db8::9", kubeovnv1.DefaultVpc, ""), true},
		{pod("192.0.2.9,2001:db8::1", kubeovnv1.DefaultVpc, ""), true},
		{pod("192.0.2.9", kubeovnv1.DefaultVpc, ""), false},
		{pod("192.0.2.1,2001:db8::1", "tenant", ""), false},
		{pod("192.0.2.1", "", "physical"), true},
	} {
		if got := isSink(c.pod, sinks); got != c.want {
			t.Errorf("a pod with %v is a sink: %v, want %v", c.pod.Annotations, got, c.want)
		}
	}
}
