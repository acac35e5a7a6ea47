// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

// Keeper decides for the writer of IP objects.
var _ ipobject.Allocations = (*Keeper)(nil)

// Want implements ipobject.Allocations.
func (k *Keeper) Want(ctx context.Context, name string, have *kubeovnv1.IP, allocation ipam.Allocation) (*kubeovnv1.IP, error) {
	switch absent := k.states.of(name); {
	case absent.state == Retained && absent.recorded && have == nil, absent.state == Reserved && !allocations.IsReservation(have):
		return nil, nil // a user has deleted it, and the allocation is about to be freed
	case absent.state == Retained: // a pod of this name may exist, and wait
		return ipobject.OfPod(absent.port, "", absent.podType, allocation), nil
	case absent.state == Reserved:
		return ipobject.Reserved(have, allocation), nil
	}
	port := k.portOf(name, have)
	pod, err := k.PodAt(ctx, port)
	if pod == nil || err != nil {
		return nil, err
	}
	want := ipobject.OfPod(port, pod.Spec.NodeName, k.PodType(pod), allocation)
	if kubeovnv1.IsMirror(pod.Annotations) {
		want.Labels[kubeovnv1.LabelStaticPod] = ""
	}
	return want, nil
}

// Obstacle implements ipobject.Allocations.
func (k *Keeper) Obstacle(port string) string { return k.Waiting(port) }

// Decide implements ipobject.Allocations.
func (k *Keeper) Decide(port string, ip *kubeovnv1.IP) { k.Enqueue(k.portOf(port, ip).Key()) }

// IsAbsent reports whether the allocation of a port is kept while no pod has it.
func (k *Keeper) IsAbsent(port string) bool { return k.states.of(port).state != Held }

// Recorded implements ipobject.Allocations: the port of a retained allocation can be removed.
func (k *Keeper) Recorded(port string) {
	if allocation, changed := k.states.record(port); changed {
		k.Enqueue(allocation.port.Key())
	}
}

// Port returns the port with a name that has an allocation.
func (k *Keeper) Port(name string) kubeovnv1.Port { return k.portOf(name, nil) }

// Retained returns the port whose allocation a workload retains under a name; its owner is empty if there is none. The port of another pod can have the same name.
func (k *Keeper) Retained(name string) kubeovnv1.Port {
	if absent := k.states.of(name); absent.state == Retained && absent.port.Owner != "" {
		return absent.port
	}
	return kubeovnv1.Port{}
}

// portOf returns the port with a name: of a retained allocation, of a pod, or of the pod that its IP object names. ip may be nil.
func (k *Keeper) portOf(name string, ip *kubeovnv1.IP) kubeovnv1.Port {
	if port := k.Retained(name); port.Owner != "" {
		return port
	}
	if port, _, known := k.PortNamed(name); known {
		return port
	}
	if absent := k.states.of(name); absent.state != Held {
		return absent.port
	}
	if ip != nil {
		if port, isPods := ipobject.PortOf(ip); isPods {
			return port
		}
	}
	return kubeovnv1.Port{Provider: kubeovnv1.ProviderOVN, Name: name}
}

// restoreRetained restores the allocations that IP objects retain, for absent pods or for no pod. It enqueues their owners; once the gate is open,
// their passes free the allocations that need not be retained. live reads from the API server, because the cache has no IP objects yet, except on a standby that takes over.
func (k *Keeper) restoreRetained(ctx context.Context, live client.Reader) error {
	reader := live
	if k.IPObjects.Cached() {
		reader = k.Client
	}
	var ips kubeovnv1.IPList
	if err := reader.List(ctx, &ips, allocations.ThatRetain()); err != nil {
		return fmt.Errorf("list IPs that keep addresses: %w", err)
	}
	found := make(map[string]*kubeovnv1.IP, len(ips.Items))
	for i := range ips.Items {
		ip := &ips.Items[i]
		if ip.Spec.Subnet == kubeovnv1.JoinSubnet || ip.DeletionTimestamp != nil {
			continue
		}
		found[ip.Name] = ip
		k.restoreOne(ctx, ip)
		k.Decide(ip.Name, ip)
	}
	k.IPObjects.SetEarly(found)
	return nil
}

func (k *Keeper) restoreOne(ctx context.Context, ip *kubeovnv1.IP) {
	request, err := allocations.RequestOf(ip)
	allocation, held := k.Allocator.Lookup(ip.Name)
	if err != nil || len(request.Addresses) == 0 {
		return
	}
	if !held {
		allocation = ipam.Allocation{Subnet: request.Subnet, Addresses: request.Addresses, MAC: request.MAC}
		if err := k.Allocator.Restore(ip.Name, allocation); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot restore an allocation", "port", ip.Name, "from", "IP object")
			return
		}
		allocation, _ = k.Allocator.Lookup(ip.Name)
		allocations.LogGiven(ctrl.LoggerFrom(ctx), ip.Name, allocation, allocations.SourceRestored)
	}
	port := k.portOf(ip.Name, ip)
	taken := !held && port.Owner != "" && allocations.NamesOther(ip, port) // by the event of a new pod
	if taken {
		port, _ = kubeovnv1.NamedPort(ip.Spec.Namespace, ip.Spec.PodName, ip.Name)
	} else if pod, err := k.PodAt(ctx, port); err != nil || pod != nil {
		return
	}
	state := Reserved
	if ip.Spec.PodType != "" {
		state = Retained
	}
	k.states.put(absent{port: port, state: state, podType: ip.Spec.PodType, recorded: true})
	k.Addresses.Settle(ctx, ip.Name, "", allocation)
}
