// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficmirror

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/validation"
)

// port is a selected port.
type port struct {
	kubeovnv1.Port

	node    string
	created time.Time
	static  bool // a mirror pod
}

func portOf(pod *corev1.Pod) port {
	return port{kubeovnv1.PortOf(pod, kubeovnv1.ProviderOVN), pod.Spec.NodeName, pod.CreationTimestamp.Time, kubeovnv1.IsMirror(pod.Annotations)}
}

// selection has the criteria of a TrafficMirror.
type selection struct {
	ports []port
	// sinks are selected pods whose address is a sink: copies to them would be copied again.
	sinks []string
	// matching is the number of ports before MaxPorts.
	matching int
}

// selected returns the ports of the pods that a spec selects, at most MaxPorts.
func (r *Reconciler) selected(ctx context.Context, spec *kubeovnv1.TrafficMirrorSpec, all []kubeovnv1.TrafficMirror) (selection, error) {
	ofNamespaces, ofPods, _ := validation.TrafficMirror(spec)
	within := []string{corev1.NamespaceAll}
	if !ofNamespaces.Empty() {
		var err error
		if within, err = r.namespaces(ctx, ofNamespaces); err != nil {
			return selection{}, err
		}
	}
	var out selection
	sinks := sinksOf(all)
	for _, namespace := range within {
		var pods corev1.PodList
		err := r.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: ofPods}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return selection{}, fmt.Errorf("list pods: %w", err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if !connected(pod) || spec.Vpc != "" && pod.Annotations[keyVpc] != spec.Vpc {
				continue
			}
			if isSink(pod, sinks) {
				out.sinks = append(out.sinks, pod.Namespace+"/"+pod.Name)
				continue
			}
			out.ports = append(out.ports, portOf(pod))
		}
	}
	out.ports = distinct(out.ports)
	out.matching = len(out.ports)
	out.ports = share(out.ports, MaxPorts)
	slices.Sort(out.sinks)
	return out, nil
}

// distinct returns the ports in the order of the age of their pods. Pods of one virtual machine share its port; the oldest has it.
func distinct(ports []port) []port {
	slices.SortFunc(ports, func(a, b port) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.Name, b.Name))
	})
	known := make(map[string]bool, len(ports))
	return slices.DeleteFunc(ports, func(p port) bool {
		again := known[p.Name]
		known[p.Name] = true
		return again
	})
}

// share returns at most a number of ports, in the order of their age. If there are more, each namespace gets an equal share for its oldest pods: one
// namespace with many pods, whose labels its users choose, takes no share of another one. Mirror pods, of which a kubelet can create any number in every
// namespace, come last.
func share(ports []port, most int) []port {
	if len(ports) <= most {
		return ports
	}
	type turn struct {
		static bool
		round  int
	}
	rounds := map[string]int{}
	turns := make(map[string]turn, len(ports))
	for _, p := range ports {
		group := p.Namespace
		if p.static {
			group = "" // no namespace has this name
		}
		turns[p.Name] = turn{p.static, rounds[group]}
		rounds[group]++
	}
	inTurn := slices.Clone(ports)
	slices.SortStableFunc(inTurn, func(a, b port) int {
		x, y := turns[a.Name], turns[b.Name]
		switch {
		case x.static == y.static:
			return cmp.Compare(x.round, y.round)
		case x.static:
			return 1
		default:
			return -1
		}
	})
	chosen := make(map[string]bool, most)
	for _, p := range inTurn[:most] {
		chosen[p.Name] = true
	}
	return slices.DeleteFunc(ports, func(p port) bool { return !chosen[p.Name] })
}

func (r *Reconciler) namespaces(ctx context.Context, selector labels.Selector) ([]string, error) {
	var list corev1.NamespaceList
	if err := r.Client.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names, nil
}

// Keys of the results on pods that decide about a port.
var (
	keyVpc             = kubeovnv1.AnnotationLogicalRouter.Key()
	keyAddresses       = kubeovnv1.AnnotationIPAddress.Key()
	keyProviderNetwork = kubeovnv1.AnnotationProviderNetwork.Key()
)

// connected reports whether a pod has a port.
func connected(pod *corev1.Pod) bool {
	return podset.Counts(pod) && !pod.Spec.HostNetwork && kubeovnv1.IsPublished(pod)
}

// sinksOf returns the collectors of all TrafficMirrors.
func sinksOf(all []kubeovnv1.TrafficMirror) map[netip.Addr]bool {
	sinks := map[netip.Addr]bool{}
	for i := range all {
		for _, spec := range []*kubeovnv1.TrafficMirrorSpec{&all[i].Spec, appliedSpec(&all[i])} {
			if spec == nil {
				continue
			}
			if a, err := netip.ParseAddr(spec.Sink); err == nil {
				sinks[a.Unmap()] = true
			}
		}
	}
	return sinks
}

// isSink reports whether copies reach a pod: nodes route them to pods of the default VPC and of physical networks. In another VPC an address can equal the one of
// a collector by chance, or by the choice of a tenant whose packets would then have no copies.
func isSink(pod *corev1.Pod, sinks map[netip.Addr]bool) bool {
	if pod.Annotations[keyVpc] != kubeovnv1.DefaultVpc && pod.Annotations[keyProviderNetwork] == "" {
		return false
	}
	addresses, _ := ipfamily.ParseAddrs(pod.Annotations[keyAddresses])
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return sinks[a] })
}
