// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

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
