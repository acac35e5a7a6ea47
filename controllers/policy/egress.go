// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
)

// restoreEgress adds the sets that EgressAddresses use.
func (r *Reconciler) restoreEgress(ctx context.Context, uses map[desired.Owner][]podset.Selector) error {
	var list kubeovnv1.EgressAddressList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list EgressAddresses: %w", err)
	}
	for i := range list.Items {
		if spec := k8s.AppliedEgress(&list.Items[i]); spec != nil && list.Items[i].DeletionTimestamp == nil {
			uses[translate.EgressAddressOwner(list.Items[i].Name)] = []podset.Selector{podset.OfEgress(&list.Items[i], spec)}
		}
	}
	return nil
}

// led returns the sets of pods for which EgressAddresses lead packets, also deleted ones, with the ports of these pods, by the northbound database: a former process may have
// ended while it changed them.
func (r *Reconciler) led(pods []corev1.Pod) map[desired.Owner]map[string][]podset.Key {
	if r.Northbound == nil {
		return nil
	}
	owners := map[string]desired.Owner{} // by the name of an address set in the database
	northbound.Each(r.Northbound, translate.KindEgressAddress, func(owner desired.Owner, policy *nb.LogicalRouterPolicy) {
		sets, _, _ := translate.ReadEgressPolicy(policy)
		for _, set := range sets {
			owners[set] = owner
		}
	})
	if len(owners) == 0 {
		return nil
	}
	led := map[desired.Owner]map[string][]podset.Key{}
	northbound.Each(r.Northbound, translate.KindPodSet, func(set desired.Owner, row *nb.AddressSet) {
		if owner, is := owners[row.Name]; is {
			if led[owner] == nil {
				led[owner] = map[string][]podset.Key{}
			}
			led[owner][set.Name] = nil
		}
	})
	ports := portsByAddress(pods)
	for _, sets := range led {
		for name := range sets {
			for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
				for _, address := range r.Northbound.Elements(desired.SetAddresses(translate.PeersRef(translate.PodSetPart{Name: name}, family))) {
					sets[name] = append(sets[name], ports[address]...)
				}
			}
		}
	}
	return led
}

// portsByAddress returns the ports of pods in the default VPC by their addresses. Two pods can have the port of a virtual machine.
func portsByAddress(pods []corev1.Pod) map[string][]podset.Key {
	ports := map[string][]podset.Key{}
	for i := range pods {
		p := &pods[i]
		if p.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] != kubeovnv1.DefaultVpc || !connected(p) {
			continue
		}
		for _, address := range ipfamily.ValidAddrs(strings.Split(p.Annotations[kubeovnv1.AnnotationIPAddress.Key()], ",")...) {
			ports[address.String()] = append(ports[address.String()], podset.KeyOf(p, kubeovnv1.ProviderOVN))
		}
	}
	return ports
}
