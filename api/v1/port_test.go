// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPorts(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web.v1", UID: "u1"}}
	const second = "net1.default.ovn"
	for name, c := range map[string]struct {
		port Port
		name string
		key  types.NamespacedName
	}{
		"the first network":            {NewPort("shop", "web.v1", ""), "web.v1.shop", types.NamespacedName{Namespace: "shop", Name: "web.v1"}},
		"another network":              {NewPort("shop", "web", second), "web.shop.net1.default.ovn", types.NamespacedName{Namespace: "shop", Name: "web"}},
		"a pod":                        {PortOf(pod, ProviderOVN), "web.v1.shop", types.NamespacedName{Namespace: "shop", Name: "web.v1"}},
		"an IP object that no pod has": {Port{Name: "web.shop"}, "web.shop", types.NamespacedName{Name: "web.shop"}},
		"a second network of a pod":    {PortOf(pod, second), "web.v1.shop.net1.default.ovn", types.NamespacedName{Namespace: "shop", Name: "web.v1"}},
	} {
		if c.port.Name != c.name || c.port.Key() != c.key {
			t.Errorf("%s has port %+v with key %s, want %s with %s", name, c.port, c.port.Key(), c.name, c.key)
		}
	}
}

// The name of a port and its owner say which provider the port has. A name alone says neither.
func TestNamedPort(t *testing.T) {
	const name = "p.victim.net.default"
	for _, port := range []Port{NewPort("victim", "p", "net.default"), NewPort("default", "p.victim.net", ProviderOVN)} {
		if got, is := NamedPort(port.Namespace, port.Owner, name); !is || got != port || port.Name != name {
			t.Errorf("of %s, %s is %+v (%t), want %+v", port.Key(), name, got, is, port)
		}
	}
	for _, owner := range []types.NamespacedName{
		{Namespace: "victim", Name: "q"}, {Namespace: "vict", Name: "p"}, {Namespace: "net", Name: "p.victim"}, {Name: "p.victim.net"}, {Namespace: "victim"}, {},
	} {
		if got, is := NamedPort(owner.Namespace, owner.Name, name); is != (owner.Name == "p.victim") {
			t.Errorf("of %s, %s is %+v (%t)", owner, name, got, is)
		}
	}
	if got, is := NamedPort("victim", "p", "p.victim."+ProviderOVN); is {
		t.Errorf("the default provider is no suffix, and the port is %+v", got)
	}
}

func TestPortOfAVirtualMachine(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "virt-launcher-db-x", UID: "u1",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "db", Controller: new(true)}},
		Annotations:     PodNetwork{UID: "u1", Allocated: true, Machine: "db"}.Annotations(),
	}}
	if got := PortOf(pod, ProviderOVN).Name; got != "db.shop" {
		t.Errorf("the port is %s", got)
	}
	pod.UID = "u2" // the annotations were copied from another pod
	if got := PortOf(pod, ProviderOVN).Name; got != "virt-launcher-db-x.shop" {
		t.Errorf("with results of another pod, the port is %s", got)
	}
}

func TestResultKeysOfANetwork(t *testing.T) {
	network := PodNetwork{Provider: "net1.default.ovn", UID: "u1", Allocated: true, LogicalSwitch: "blue"}
	keys := ResultKeys(network.Provider)
	for key := range network.Annotations() {
		if !slices.Contains(keys, key) {
			t.Errorf("%s is not a result key of the network", key)
		}
	}
	if first := ResultKeys(ProviderOVN); len(first) != len(keys) || slices.Contains(first, keys[0]) {
		t.Errorf("the first network has the keys %v", first)
	}
}
