// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"net/netip"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestDifferenceHasTheChangesOfOnePatch(t *testing.T) {
	network := kubeovnv1.PodNetwork{
		UID: "u1", Allocated: true, Routed: true, LogicalSwitch: "s1", LogicalRouter: "ovn-cluster",
		Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2")}, MTU: 1400, NICType: kubeovnv1.PodNICTypeVeth,
	}
	have := maps.Clone(network.Annotations())
	have["mine"] = "untouched"
	if d := difference(have, network.Annotations(), kubeovnv1.ProviderOVN); len(d) != 0 {
		t.Errorf("a pod that has it all is patched: %v", d)
	}
	network.MTU = 0
	have[kubeovnv1.AnnotationIPAddress.Key()] = "10.16.0.99"
	delete(have, kubeovnv1.AnnotationRouted.Key())
	d := difference(have, network.Annotations(), kubeovnv1.ProviderOVN)
	if len(d) != 3 || d[kubeovnv1.AnnotationMTU.Key()] != nil || *d[kubeovnv1.AnnotationIPAddress.Key()] != "10.16.0.2" ||
		*d[kubeovnv1.AnnotationRouted.Key()] != "true" {
		t.Errorf("patch of a damaged pod: %v", d)
	}
	// A user may change a request, or add one, after the cache saw the pod.
	requested := map[string]string{kubeovnv1.AnnotationIPAddress.Key(): "10.16.0.2"}
	d = difference(requested, network.Annotations(), kubeovnv1.ProviderOVN)
	machine, isSent := d[kubeovnv1.AnnotationMachine.Key()]
	if len(d) != len(kubeovnv1.ResultKeys(kubeovnv1.ProviderOVN)) || *d[kubeovnv1.AnnotationIPAddress.Key()] != "10.16.0.2" || !isSent || machine != nil {
		t.Errorf("the patch that allocates has not every result: %v", d)
	}
}
