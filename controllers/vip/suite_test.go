// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/vip"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type world struct{ *controllertest.World }

// start runs the controllers of pods and Vips, as `kiln controller` does.
func (w world) start() *controllertest.Process {
	var pods *pod.Reconciler
	var vips *vip.Reconciler
	return w.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			pods = networktest.Pods(p)
			vips = &vip.Reconciler{Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Vips: p.Vips, Grants: p.Grants, Recorder: p.Recorder, Gate: p.Gate}
			return p.Run(ctx, pods, vips)
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			if err := pods.Restore(ctx, p.Manager.GetAPIReader()); err != nil {
				return err
			}
			return vips.Restore(ctx)
		},
	})
}

func newWorld(t *testing.T) world {
	w := world{controllertest.New(t)}
	w.Subnet("ovn-default", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/24,fd00:10:16::/112" })
	return w
}

func (w world) vip(name string, change ...func(*kubeovnv1.VipSpec)) *kubeovnv1.Vip {
	w.Helper()
	v := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range change {
		f(&v.Spec)
	}
	if v.Spec.Namespace == "" && v.Spec.AllowedNamespaces == nil {
		v.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}
	}
	w.Create(v)
	return v
}

func at(v4, v6 string) func(*kubeovnv1.VipSpec) {
	return func(s *kubeovnv1.VipSpec) { s.V4IP, s.V6IP = v4, v6 }
}

// ready waits until a Vip is ready, and returns its addresses.
func (w world) ready(v *kubeovnv1.Vip) string {
	w.Helper()
	w.Ready(v)
	return strings.Trim(v.Status.V4IP+","+v.Status.V6IP, ",")
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

// pod creates a pod, and returns it once it has its addresses.
func (w world) pod(name string, annotations ...string) *corev1.Pod {
	w.Helper()
	p := newPod(name, annotations...)
	w.Create(p)
	w.published(p)
	return p
}

// published waits until a pod has its addresses, and returns them.
func (w world) published(p *corev1.Pod) string {
	w.Helper()
	w.Eventually(func() string {
		if w.Get(p); p.Annotations["ovn.kubernetes.io/pod_uid"] != string(p.UID) {
			return fmt.Sprintf("pod %s has %v", p.Name, p.Annotations)
		}
		return ""
	})
	return p.Annotations["ovn.kubernetes.io/ip_address"]
}

func (w world) row(port string) nbtest.Row {
	w.Helper()
	for _, row := range w.Database.Rows("Logical_Switch_Port") {
		if row["name"] == port {
			return row
		}
	}
	return nil
}

// parents waits until a Vip has virtual ports with these parents in both families, and its addresses are in the sets of shared addresses. If parents is
// empty, it waits until no virtual port exists.
func (w world) parents(v *kubeovnv1.Vip, parents string) {
	w.Helper()
	w.Eventually(func() string {
		for family, address := range map[string]string{"IPv4": v.Status.V4IP, "IPv6": v.Status.V6IP} {
			row := w.row(v.Name + "_" + family)
			if leaves := w.leavesAsShared(family, address); address != "" && leaves != (parents != "") {
				return fmt.Sprintf("%s is in the set of shared addresses: %t", address, leaves)
			}
			switch {
			case row == nil && (parents == "" || address == ""):
				continue
			case row == nil || row["type"] != "virtual":
				return fmt.Sprintf("virtual port of family %s: %v", family, row)
			}
			options := row["options"].(map[string]string)
			if parents == "" || options["virtual-ip"] != address || options["virtual-parents"] != parents {
				return fmt.Sprintf("virtual port of family %s: %v, want parents %s", family, row, parents)
			}
		}
		return ""
	})
}

// leavesAsShared reports whether an address is in the set of shared addresses of the default VPC.
func (w world) leavesAsShared(family, address string) bool {
	for _, row := range w.Database.Rows("Address_Set") {
		if row["external_ids"].(map[string]string)["kiln-key"] == "shared/"+family {
			return slices.Contains(row.Strings("addresses"), address)
		}
	}
	return false
}

// passes waits until a pod's port accepts exactly these addresses.
func (w world) passes(p *corev1.Pod, addresses string) {
	w.Helper()
	w.Eventually(func() string {
		row := w.row(p.Name + ".default")
		if row == nil {
			return "no port"
		}
		security := row.Strings("port_security")
		if len(security) != 1 || strings.Join(strings.Fields(security[0])[1:], ",") != addresses {
			return fmt.Sprintf("port security of pod %s: %v, want %s", p.Name, security, addresses)
		}
		return ""
	})
}
