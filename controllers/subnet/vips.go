// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// indexVips is an index of pods by the addresses that they share (shareKey).
const indexVips = "subnet.vips"

func shareKey(subnet string, vip netip.Addr) string { return subnet + " " + vip.String() }

// shareKeys returns the keys of a pod in indexVips, or none before its network is published.
func shareKeys(o client.Object) []string {
	subnet := subnetOf(o)
	if subnet == "" || !kubeovnv1.IsPublished(o) {
		return nil
	}
	var keys []string
	for _, vip := range kubeovnv1.ParsePortVips(o.GetAnnotations()) {
		keys = append(keys, shareKey(subnet, vip))
	}
	return keys
}

func subnetOf(pod client.Object) string {
	return pod.GetAnnotations()[kubeovnv1.AnnotationLogicalSwitch.Key()]
}

// sharing returns the ports of pods that share each vip of a subnet.
func (r *Reconciler) sharing(ctx context.Context, subnet *kubeovnv1.Subnet) (map[netip.Addr][]string, error) {
	sharing := map[netip.Addr][]string{}
	for _, written := range subnet.Spec.Vips {
		vip, err := ipfamily.ParseAddr(written)
		if err != nil {
			continue // validation reports it
		}
		var pods corev1.PodList
		err = r.Client.List(ctx, &pods, client.MatchingFields{indexVips: shareKey(subnet.Name, vip)}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("list pods that share %s: %w", vip, err)
		}
		sharing[vip] = nil
		for i := range pods.Items {
			sharing[vip] = append(sharing[vip], portOf(&pods.Items[i]).Name)
		}
		slices.Sort(sharing[vip])
		sharing[vip] = slices.Compact(sharing[vip]) // during a live migration, two pods have the port of one machine
	}
	return sharing, nil
}

// vipsInUse returns a problem if an address that a change adds to vips has a holder: every pod of the subnet could take over its traffic by port_vips.
func (r *Reconciler) vipsInUse(s *kubeovnv1.Subnet, vips []netip.Addr) *validation.Problem {
	if s.Status.ValidatedSpec == nil { // a new subnet, or one of Kube-OVN, which keeps its vips
		return nil
	}
	had := ipfamily.ValidAddrs(s.Status.ValidatedSpec.Vips...)
	for _, vip := range vips {
		if slices.Contains(had, vip) {
			continue
		}
		if holder := r.Allocator.Holder(s.Name, vip); holder != "" {
			return validation.InUse("vips: %s: delete its owner, or choose an address that nothing has", ipam.Holder{Address: vip, Port: holder})
		}
	}
	return nil
}

// portOf returns the port of a pod, or of the virtual machine that it runs.
func portOf(pod client.Object) kubeovnv1.Port { return kubeovnv1.PortOf(pod, kubeovnv1.ProviderOVN) }

// virtualPorts returns the virtual ports of vips, with the ports of pods that may use them as parents.
func (in inputs) virtualPorts(vips []netip.Addr) []translate.VirtualPort {
	ports := make([]translate.VirtualPort, 0, len(vips))
	for _, vip := range vips {
		ports = append(ports, translate.VirtualPort{Address: vip, Parents: in.sharing[vip]})
	}
	return ports
}

// shares selects events that change the ports sharing an address: creation, deletion and changes of pods that share one.
func shares() builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return len(shareKeys(e.Object)) > 0 },
		DeleteFunc: func(e event.DeleteEvent) bool { return len(shareKeys(e.Object)) > 0 },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := shareKeys(e.ObjectOld), shareKeys(e.ObjectNew)
			return !slices.Equal(before, after) || len(after) > 0 && portOf(e.ObjectOld) != portOf(e.ObjectNew)
		},
	})
}

// subnetOfPod enqueues the subnet of a pod.
func subnetOfPod(_ context.Context, o client.Object) []reconcile.Request {
	if subnet := subnetOf(o); subnet != "" {
		return k8s.Requests(subnet)
	}
	return nil
}
