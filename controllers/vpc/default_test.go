// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// forceDeletion deletes an object and its finalizers, and waits until another object has its name.
func (n *tenants) forceDeletion(o client.Object) {
	n.Helper()
	n.Get(o)
	before := o.GetUID()
	n.Delete(o)
	if n.Get(o) && o.GetUID() == before {
		n.LetGo(o)
	}
	n.Eventually(func() string {
		if !n.Get(o) || o.GetUID() == before {
			return fmt.Sprintf("%T %s was deleted by force and does not exist again", o, o.GetName())
		}
		return ""
	})
	n.Ready(o)
}

// addForeignPort adds a port of another system to a row. The database deletes it together with the row.
func (n *tenants) addForeignPort(ports, table, name string) {
	n.Helper()
	row := map[string]any{"name": "foreign-" + name}
	if ports == "Logical_Router_Port" {
		row["mac"], row["networks"] = "00:00:00:00:00:09", "192.0.2.9/24"
	}
	n.Database.Transact(
		nbtest.Op{"op": "insert", "table": ports, "uuid-name": "port", "row": row},
		nbtest.Op{"op": "mutate", "table": table, "where": nbtest.Where("name", "==", name), "mutations": []any{[]any{"ports", "insert", []any{"named-uuid", "port"}}}})
}

// hasForeignPort fails the test if the row of addForeignPort was deleted.
func (n *tenants) hasForeignPort(ports, name string) {
	n.Helper()
	if !slices.Contains(n.Database.Names(ports), "foreign-"+name) {
		n.Errorf("the row of %s was deleted", name)
	}
}

// TestDefaultNetworksThatAreDeletedByForceExistAgain deletes ovn-default, join and ovn-cluster with their finalizers while a pod has an address.
func TestDefaultNetworksThatAreDeletedByForceExistAgain(t *testing.T) {
	n := start(t)
	n.DiffersFromFresh("ports of another system")
	_, err := n.process.Allocator.Allocate("node-n1", ipam.Request{Subnet: kubeovnv1.JoinSubnet})
	n.Must(err)
	running, err := n.process.Allocator.Allocate("running.default", ipam.Request{Subnet: kubeovnv1.DefaultSubnet})
	n.Must(err)
	pods := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultSubnet}}
	acl := kubeovnv1.ACL{Direction: "to-lport", Priority: 1100, Match: "ip4.src == 192.0.2.1", Action: "drop"}
	n.Change(pods, func() { pods.Spec.ExcludeIPs, pods.Spec.ACLs = []string{"10.16.7.7"}, []kubeovnv1.ACL{acl} })
	n.Ready(pods)
	join := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.JoinSubnet}}

	for _, s := range []*kubeovnv1.Subnet{pods, join} {
		n.addForeignPort("Logical_Switch_Port", "Logical_Switch", s.Name)
		n.Get(s)
		spec := s.Spec.DeepCopy()
		n.forceDeletion(s)
		n.Event(s, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: subnet.EventRecreated})
		if diff := cmp.Diff(*spec, s.Spec); diff != "" {
			t.Errorf("%s exists again with another spec:\n%s", s.Name, diff)
		}
		n.hasForeignPort("Logical_Switch_Port", s.Name)
	}
	if allocation, ok := n.process.Allocator.Lookup("running.default"); !ok || fmt.Sprint(allocation.Addresses) != fmt.Sprint(running.Addresses) {
		t.Errorf("the running pod has %v, and had %v", allocation.Addresses, running.Addresses)
	}
	later, err := n.process.Allocator.Allocate("later.default", ipam.Request{Subnet: kubeovnv1.DefaultSubnet})
	if n.Must(err); fmt.Sprint(later.Addresses) == fmt.Sprint(running.Addresses) {
		t.Errorf("a new pod got %v, the addresses of a running pod", later.Addresses)
	}

	router := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
	n.Change(router, func() {
		router.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "198.51.100.0/24", NextHopIP: "10.16.0.9", Policy: "policyDst"}}
	})
	n.Ready(router)
	n.addForeignPort("Logical_Router_Port", "Logical_Router", router.Name)
	n.Eventually(func() string { // the status follows the usage of a subnet after a delay
		if n.Get(pods); pods.Status.V4UsingIPs != 2 {
			return fmt.Sprintf("%v addresses of %s are in use, want 2", pods.Status.V4UsingIPs, pods.Name)
		}
		return ""
	})
	n.Rests("subnet")
	n.Get(pods)
	version := pods.ResourceVersion
	n.forceDeletion(router)
	n.Event(router, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: vpc.EventRecreated})
	if len(router.Spec.StaticRoutes) != 1 {
		t.Errorf("%s exists again without its static route: %+v", router.Name, router.Spec)
	}
	n.hasForeignPort("Logical_Router_Port", router.Name)
	n.Rests("subnet")
	if n.Get(pods); pods.ResourceVersion != version {
		t.Errorf("subnet %s left the router while Vpc %s did not exist", pods.Name, router.Name)
	}
}

// TestADefaultSubnetThatIsNotInUseGetsTheFieldsOfTheOVNCluster deletes ovn-default without use of force.
func TestADefaultSubnetThatIsNotInUseGetsTheFieldsOfTheOVNCluster(t *testing.T) {
	n := start(t)
	pods := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultSubnet}}
	n.Change(pods, func() { pods.Spec.ExcludeIPs = []string{"10.16.7.7"} })
	n.Ready(pods)
	n.Recreates(pods)
	if got := fmt.Sprint(pods.Spec.ExcludeIPs); got != "[10.16.0.1]" {
		t.Errorf("excludeIps of the new ovn-default are %s", got)
	}
	n.Ready(pods)
}
