// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func TestPodsFollowASubnetThatGrows(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "web")
	before := address(p)
	w.Change(s, func() { s.Spec.CIDRBlock, s.Spec.Gateway = "10.16.0.0/23,fd00:10:16::/64", "10.16.0.1,fd00:10:16::1" })
	w.InForce(s, process)
	w.Eventually(func() string {
		w.Get(p)
		if p.Annotations["ovn.kubernetes.io/cidr"] != "10.16.0.0/23" || p.Annotations["ovn.kubernetes.io/gateway"] != "10.16.0.1" {
			return fmt.Sprintf("annotations are %v", p.Annotations)
		}
		return ""
	})
	if address(p) != before {
		t.Errorf("the pod had %s and has %s", before, address(p))
	}
	if got := ipfamily.Join(w.allocated(w.pod("default", "later")).CIDRs); got != "10.16.0.0/23,fd00:10:16::/64" {
		t.Errorf("a later pod has addresses of %s", got)
	}
}

// A pod follows a change of its subnet even if the cache shows the pod's network only after the change.
func TestAPodFollowsASubnetThatChangesBeforeTheCacheHasItsNetwork(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24")
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	steps := stepsAt(ipobject.Pace{})
	steps.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: func(o any) (any, error) {
		if p, ok := o.(*corev1.Pod); ok && p.Name == "late" && address(p) != "" {
			<-held
		}
		return o, nil
	}}}
	process := w.Start(steps)
	t.Cleanup(release)
	early := w.pod("default", "early")
	w.Eventually(func() string {
		cached := &corev1.Pod{}
		w.Must(process.Client.Get(w.Context(), client.ObjectKeyFromObject(early), cached))
		if address(cached) == "" {
			return "the cache has the early pod without its network"
		}
		return ""
	})
	late := w.pod("default", "late")
	w.Change(s, func() { s.Spec.CIDRBlock = "10.16.0.0/23" })
	w.InForce(s, process)
	followed := func(p *corev1.Pod) {
		t.Helper()
		w.Eventually(func() string {
			if w.Get(p); p.Annotations["ovn.kubernetes.io/cidr"] != "10.16.0.0/23" {
				return fmt.Sprintf("annotations of %s are %v", p.Name, p.Annotations)
			}
			return ""
		})
	}
	followed(early) // the controller has handled the change
	release()
	followed(late)
}

func TestAChangedSubnetCostsEachOfItsPodsOnePatch(t *testing.T) {
	const pods = 12
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/26,fd00:10:16::/112")
	w.subnet("quiet", "10.17.0.0/24", serving("quiet"))
	w.namespace("quiet", nil)
	var all []*corev1.Pod
	create := func(p *corev1.Pod) { w.Create(p); all = append(all, p) }
	process := w.start()
	for i := range pods {
		create(newPod("default", fmt.Sprintf("p%d", i)))
		create(newPod("quiet", fmt.Sprintf("q%d", i)))
	}
	for _, p := range all {
		w.allocated(p)
	}
	w.agree(process)
	followed := func(cidr, gateway string) {
		t.Helper()
		for _, p := range all {
			w.Eventually(func() string {
				if w.Get(p); p.Namespace == "default" && (p.Annotations["ovn.kubernetes.io/cidr"] != cidr || p.Annotations["ovn.kubernetes.io/gateway"] != gateway) {
					return fmt.Sprintf("annotations are %v", p.Annotations)
				}
				return ""
			})
		}
	}
	before := process.Writes(http.MethodPatch, "/pods/")
	w.Change(s, func() { s.Spec.CIDRBlock = "10.16.0.0/20,fd00:10:16::/64" })
	w.InForce(s, process)
	followed("10.16.0.0/20,fd00:10:16::/64", "10.16.0.1,fd00:10:16::1")
	w.Change(s, func() { s.Spec.Gateway = "10.16.8.1,fd00:10:16::1:1" })
	w.InForce(s, process)
	followed("10.16.0.0/20,fd00:10:16::/64", "10.16.8.1,fd00:10:16::1:1")
	if n := process.Writes(http.MethodPatch, "/pods/") - before; n != 2*pods {
		t.Errorf("%d patches for 2 changes of a subnet with %d pods", n, pods)
	}

	process.Stop()
	w.Change(s, func() { s.Spec.CIDRBlock = "10.16.0.0/16,fd00:10:16::/48" })
	w.InForce(s)
	process = w.start()
	followed("10.16.0.0/16,fd00:10:16::/48", "10.16.8.1,fd00:10:16::1:1")
	w.agree(process)
	if n := process.Writes(http.MethodPatch, "/pods/"); n != pods {
		t.Errorf("%d patches by a start after a change of a subnet with %d pods", n, pods)
	}
}
