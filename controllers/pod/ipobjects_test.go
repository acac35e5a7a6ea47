// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
)

// never is a pace so slow that no test sees an IP object.
var never = ipobject.Pace{Quiet: time.Hour, AtMost: time.Hour}

func TestAPodDeletedBeforeItsIPObjectIsWrittenLeavesNone(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.Start(stepsAt(never))
	for i := range 5 {
		p := w.pod("default", fmt.Sprintf("p%d", i))
		w.Delete(p)
		w.gone(process, p)
	}
	for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodDelete} {
		if n := process.Writes(method, "/ips"); n != 0 {
			t.Errorf("%d %s of IP objects", n, method)
		}
	}
}

// A rule for an external address has no rows without the IP object that it names.
func TestIPObjectsThatRulesNameDoNotWaitForNewPods(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.Create(&kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "web.default"}})
	w.Create(&kubeovnv1.OvnDnatRule{ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: kubeovnv1.OvnDnatRuleSpec{
		OvnEip: "front", IPName: "front.default", Protocol: "tcp", ExternalPort: "443", InternalPort: "8443",
	}})
	process := w.Start(stepsAt(never))
	for range 2 {
		for _, name := range []string{"other", "web", "front"} {
			p := w.pod("default", name)
			if name != "other" {
				w.ipObject(p)
			}
		}
		for _, name := range []string{"other", "web", "front"} {
			p := newPod("default", name)
			w.Get(p)
			w.Delete(p)
			w.gone(process, p)
		}
	}
	w.Rests("ip")
	if n := process.Writes(http.MethodPost, "/ips"); n != 4 {
		t.Errorf("%d creations of IP objects, want 2 of each pod that a rule names", n)
	}
}

func TestIPObjectsThatACrashPreventedAreWrittenAfterIt(t *testing.T) {
	const pods = 5
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	first := w.Start(stepsAt(never))
	for i := range pods {
		w.pod("default", fmt.Sprintf("p%d", i))
	}
	var ips kubeovnv1.IPList
	w.Must(w.Client.List(t.Context(), &ips))
	if len(ips.Items) != 0 {
		t.Errorf("%d IP objects while pods come", len(ips.Items))
	}
	gone := w.pod("default", "gone")
	first.Stop()
	w.Delete(gone)
	second := w.start()
	w.gone(second, gone)
	w.agree(second)
	if n := second.Writes(http.MethodPost, "/ips"); n != pods {
		t.Errorf("%d creations of %d IP objects", n, pods)
	}
}

// Without its finalizer, a subnet can be deleted together with all allocations in it. The IP objects must still be deleted.
func TestAnIPObjectGoesThoughItsSubnetTookTheAllocationAlong(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "p")
	w.agree(process)
	process.Allocator.DeleteSubnet("ovn-default")
	w.Delete(p)
	w.gone(process, p)
}
