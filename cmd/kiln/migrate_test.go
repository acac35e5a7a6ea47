// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/envcheck/envchecktest"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

// inKubeOVN are the addresses of pods and nodes in the cluster of envchecktest.Objects.
var inKubeOVN = []struct {
	object  client.Object
	port    string
	address string
	mac     string
}{
	{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "site"}}, "site.web", "10.20.0.33", "3e:12:9a:00:00:33"},
	{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "db-0"}}, "db-0.web", "10.20.0.40", "3e:12:9a:00:00:40"},
	{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "app"}}, "app.tenant", "10.30.0.77", "3e:12:9a:00:00:77"},
	{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"}}, "old.default", "10.16.0.2", "3e:12:9a:00:00:02"},
	{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, "node-n1", "100.64.0.7", "3e:12:9a:00:00:07"},
	{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, "node-n2", "100.64.0.9", "3e:12:9a:00:00:09"},
}

// TestObjectsOfKubeOVNAreAdopted replaces the definitions of a cluster with Kube-OVN and starts the controller with an empty database, as
// docs/operations/migrate.md says. Subnets, VPCs and IPs stay, and every pod and node keeps its addresses.
func TestObjectsOfKubeOVNAreAdopted(t *testing.T) {
	c := startAPIServer(t, apiserver.NoKinds) // those of Kube-OVN instead
	ctx := t.Context()
	envchecktest.Define(t, c)
	envchecktest.Create(t, c, envchecktest.Objects)
	envchecktest.Replace(t, c, filepath.Join("..", "..", "config", "crd", "bases"))
	certificates := newCertificates(t)
	database := nbtest.Start(t)
	listen(t, certificates, 8, database)
	eventually.Until(t, func() string { // the API server serves new definitions a moment later
		if err := c.Get(ctx, client.ObjectKey{Name: "default"}, envchecktest.OVNCluster()); err != nil && !strings.Contains(err.Error(), "not found") {
			return err.Error()
		}
		return ""
	})
	newCluster(t, c, 8)
	flags := []string{"--pod-cidrs=10.16.0.0/16", "--membership=Open", "--port-security=Requested"}
	startController(t, certificates, "controller", os.Getenv("KUBECONFIG"), healthAt(13), append(flags, long...)...)

	for _, has := range inKubeOVN {
		eventually.Until(t, func() string { return adopted(ctx, c, has.object, has.address, has.mac) })
	}
	ports := map[string]string{}
	for _, row := range database.Rows("Logical_Switch_Port") {
		ports[fmt.Sprint(row["name"])] = fmt.Sprint(row)
	}
	for _, has := range inKubeOVN {
		if row := ports[has.port]; !strings.Contains(row, has.address) || !strings.Contains(row, has.mac) {
			t.Errorf("port %s is %s, want %s and %s", has.port, row, has.address, has.mac)
		}
	}
	for _, name := range []string{"ovn-default", "join", "web", "tenant-net"} {
		eventually.Until(t, func() string { return ready(ctx, c, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}) })
	}
	for _, name := range []string{"ovn-cluster", "tenant"} {
		eventually.Until(t, func() string { return ready(ctx, c, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}) })
	}
	for port, reserved := range map[string]string{"db-0.web": "10.20.0.40", "later.web": "10.20.0.10", "node-n1": "100.64.0.7"} {
		eventually.Until(t, func() string {
			var ip kubeovnv1.IP
			if err := c.Get(ctx, client.ObjectKey{Name: port}, &ip); err != nil {
				return err.Error()
			}
			if ip.Spec.IPAddress != reserved || !slices.Contains(ip.Finalizers, "kubeovn.io/kube-ovn-controller") {
				return fmt.Sprintf("IP %s has %q and finalizers %v, want %s", port, ip.Spec.IPAddress, ip.Finalizers, reserved)
			}
			return ""
		})
	}
	conflicting := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "zone"}}
	eventually.Until(t, func() string {
		if problem := ready(ctx, c, conflicting); !strings.Contains(problem, "overlaps") {
			return "subnet zone: " + problem
		}
		return ""
	})

	// New pods get other addresses, and the reserved one is for its pod.
	for _, name := range []string{"fresh", "later"} {
		pod := newPod(name)
		pod.Namespace = "web"
		must.Succeed(t, c.Create(ctx, pod))
	}
	eventually.Until(t, func() string {
		switch got := addressOf(ctx, c, "fresh"); {
		case !strings.HasPrefix(got, "10.20.0."):
			return "pod fresh has address " + got
		case slices.Contains([]string{"10.20.0.10", "10.20.0.33", "10.20.0.40", "10.20.0.50"}, got):
			t.Fatalf("pod fresh has the address %s of another pod, or a reserved one", got)
		}
		return ""
	})
	eventually.Until(t, func() string {
		if got := addressOf(ctx, c, "later"); got != "10.20.0.10" {
			return "pod later has address " + got
		}
		return ""
	})

	// Objects that Kube-OVN's controller has to finalize can be deleted, those that others use after these.
	for _, o := range []client.Object{
		&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "front"}}, &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "tenant-external"}},
		&kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "physical"}},
		&kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v50"}}, &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}},
	} {
		must.Succeed(t, c.Delete(ctx, o))
		eventually.Until(t, func() string {
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Sprintf("%T %s still exists with finalizers %v: %v", o, o.GetName(), o.GetFinalizers(), err)
			}
			return ""
		})
	}
}

// adopted returns why an object does not have the addresses that Kube-OVN has allocated, as a result of Kiln.
func adopted(ctx context.Context, c client.Client, o client.Object, address, mac string) string {
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err.Error()
	}
	network, err := kubeovnv1.ParsePodNetwork(o.GetAnnotations())
	switch _, isPod := o.(*corev1.Pod); {
	case err != nil:
		return err.Error()
	case isPod && !network.IsFor(o.GetUID()):
		return fmt.Sprintf("pod %s has no result of Kiln: %v", o.GetName(), o.GetAnnotations())
	case len(network.Addresses) != 1 || network.Addresses[0].String() != address || network.MAC.String() != mac:
		return fmt.Sprintf("%T %s has %v and %s, want %s and %s", o, o.GetName(), network.Addresses, network.MAC, address, mac)
	}
	return ""
}

// addressOf returns the address of a pod in the namespace web, or the error.
func addressOf(ctx context.Context, c client.Client, pod string) string {
	var p corev1.Pod
	if err := c.Get(ctx, client.ObjectKey{Namespace: "web", Name: pod}, &p); err != nil {
		return err.Error()
	}
	return p.Annotations[kubeovnv1.AnnotationIPAddress.Key()]
}

// ready returns why a Subnet or Vpc is not ready.
func ready(ctx context.Context, c client.Client, o client.Object) string {
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err.Error()
	}
	var conditions []metav1.Condition
	switch t := o.(type) {
	case *kubeovnv1.Subnet:
		conditions = t.Status.Conditions
	case *kubeovnv1.Vpc:
		conditions = t.Status.Conditions
	}
	if meta.IsStatusConditionTrue(conditions, kubeovnv1.ConditionReady) && meta.FindStatusCondition(conditions, kubeovnv1.ConditionReady).ObservedGeneration > 0 {
		return ""
	}
	return fmt.Sprintf("%s is not ready: %v", o.GetName(), conditions)
}
