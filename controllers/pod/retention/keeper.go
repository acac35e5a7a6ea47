// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package retention decides how long a port keeps its allocation without a pod: until its workload creates the pod again, until a user deletes the IP object that
// reserves the addresses, or not at all. It also restores allocations at the start.
package retention

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
)

// Keeper keeps allocations that no pod has.
type Keeper struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Addresses  *address.Chooser
	IPObjects  *ipobject.Writer
	Recorder   events.EventRecorder
	// KeepMachines retains the addresses of KubeVirt virtual machines.
	KeepMachines bool
	// MaxRetained replaces maxRetained if it is not zero.
	MaxRetained int
	// PodAt returns the pod on the pod network that has a port, nil if there is none.
	PodAt func(ctx context.Context, port kubeovnv1.Port) (*corev1.Pod, error)
	// PortNamed returns the port of a pod by its name, and whether its owner is a virtual machine. known is false for other ports.
	PortNamed func(name string) (port kubeovnv1.Port, machine, known bool)
	// Waiting returns why a port has to wait for its addresses, "" if it does not wait.
	Waiting func(port string) string
	// Enqueue requeues the owner of a port in the controller of pods, which removes and applies ports.
	Enqueue func(types.NamespacedName)

	states   states
	machines machines
}

// maxRetained is the number of addresses of absent pods up to which a namespace retains another one. No quota counts absent pods, so a tenant
// could otherwise fill a subnet by deleting pods. Pods that are deleted at the same time may exceed it by the number of workers. A retained address is never freed because
// of it.
const maxRetained = 1000

// reasonNotRetained is the reason of the event on the workload, or else the namespace, of a pod whose addresses are not retained.
const reasonNotRetained = "AddressNotRetained"

// Decision is what follows for the allocation of a port that no pod has. With the state Held the port stays as it is: the IP object does not record its new state yet.
type Decision struct {
	State State
	// reason is why the addresses are freed.
	reason     string
	podType    string
	ip         *kubeovnv1.IP   // of a reservation
	allocation ipam.Allocation // of the port; none for a reservation
}

// Gone decides about the allocation of a port whose pod was deleted, or needs none. The caller removes the port, and then calls Enter, unless the state is Held.
func (k *Keeper) Gone(ctx context.Context, port kubeovnv1.Port) (Decision, error) {
	ip, err := k.IPObjects.Find(ctx, port.Name)
	if err != nil {
		return Decision{}, err
	}
	before := k.states.of(port.Name)
	if allocations.IsReservation(ip) {
		return Decision{State: next[reserved][before.state], ip: ip}, nil
	}
	d := Decision{reason: "the pod no longer needs a port"}
	allocation, held := k.Allocator.Lookup(port.Name)
	isNodes, err := allocations.PortIsNodes(ctx, k.Client, port.Name)
	if !held || allocations.OfNode(allocation) || isNodes || err != nil {
		return d, err
	}
	if d.podType, err = k.awaitedBy(ctx, port, ip); err != nil {
		return d, err
	}
	e, most := awaited, cmp.Or(k.MaxRetained, maxRetained)
	switch d.reason = "the pod is deleted or finished, and no workload retains them"; {
	case d.podType == "":
		e = ended
	case before.recorded && ip == nil && k.IPObjects.Complete():
		e = deleted
	case k.states.retainedIn(port.Namespace) >= most:
		e = excess
	}
	d.State, d.allocation = next[e][before.state], allocation
	switch {
	case d.State == Free && e == excess:
		d.reason = "the namespace retains too many addresses of absent pods"
		k.warnOfBudget(ctx, port, most)
	case d.State == Retained && (before.state != Retained || !before.recorded):
		// From now on, events of the workload find the allocation. An earlier event has already changed the cache, which the next pass reads again.
		k.states.put(absent{port: port, state: Retained, podType: d.podType})
		k.IPObjects.Check(port.Name)
		d.State = Held
	}
	return d, nil
}

// Enter completes a decision once the port is removed. It returns a *address.Problem, with the IP object of the reservation, if that cannot get its addresses yet.
func (k *Keeper) Enter(ctx context.Context, port kubeovnv1.Port, d Decision) (*kubeovnv1.IP, error) {
	switch d.State {
	case Reserved:
		return d.ip, k.reserve(ctx, port, d.ip)
	case Retained:
		k.Addresses.Settle(ctx, port.Name, "", d.allocation)
		allocations.LogRetained(logr.FromContextOrDiscard(ctx), port.Name, d.allocation, "a "+d.podType+" may create the pod again")
		return nil, nil
	}
	return nil, k.Free(ctx, port, d.reason)
}

// Free frees the addresses of a port that is removed. The reason is for the log.
func (k *Keeper) Free(ctx context.Context, port kubeovnv1.Port, reason string) error {
	k.states.forget(port.Name)
	if allocation, ok := k.Allocator.Lookup(port.Name); ok && !allocations.OfNode(allocation) {
		allocations.Release(logr.FromContextOrDiscard(ctx), k.Allocator, port.Name, reason)
	} else if ip, err := k.IPObjects.Find(ctx, port.Name); ip == nil || err != nil { // DeleteSubnet may have removed the allocation
		return err
	}
	k.IPObjects.Check(port.Name)
	return nil
}

// reserve holds the addresses that an IP object reserves while no pod has the port.
func (k *Keeper) reserve(ctx context.Context, port kubeovnv1.Port, ip *kubeovnv1.IP) error {
	allocation, held := k.Allocator.Lookup(port.Name)
	if held && allocations.OfNode(allocation) {
		return nil // the name of the port is a node's
	}
	request, invalid := allocations.RequestOf(ip)
	if invalid != nil || !held || len(request.Addresses) == 0 || !k.Allocator.Fits(port.Name, request) {
		if held { // a deleted pod of that name
			allocations.Release(logr.FromContextOrDiscard(ctx), k.Allocator, port.Name, "the IP object reserves others")
			k.states.forget(port.Name)
		}
		if invalid != nil {
			return &address.Problem{Message: invalid.Error()}
		}
		var err error
		if allocation, err = k.Addresses.Reserve(ctx, port, request); err != nil {
			return err
		}
		allocations.LogGiven(logr.FromContextOrDiscard(ctx), port.Name, allocation, allocations.SourceReservation)
	}
	k.states.put(absent{port: port, state: Reserved, recorded: true})
	k.Addresses.Settle(ctx, port.Name, "", allocation)
	k.IPObjects.Check(port.Name) // also sets the condition
	return nil
}

// Gained records that a pod has the allocation of a port, and reports whether no pod had it before.
func (k *Keeper) Gained(port kubeovnv1.Port) bool { return k.states.forget(port.Name) }

// Inherits reports whether a pod takes over the allocation of its port: an IP object reserves it, or the pod belongs to a StatefulSet or a
// virtual machine and replaces the previous pod. ip is the IP object of the port, nil if there is none.
func (k *Keeper) Inherits(ctx context.Context, claim *address.Claim, ip *kubeovnv1.IP, allocation ipam.Allocation) (bool, error) {
	away := k.states.of(claim.Port.Name).state != Held
	if away { // false while a virtual machine migrates: its source pod still has the allocation
		if unambiguous, err := k.Addresses.Unambiguous(ctx, claim.Port.Name, claim.Node, allocation); !unambiguous || err != nil {
			return false, err
		}
	}
	reservation := allocations.IsReservation(ip)
	switch {
	case claim.Mirror && (away || reservation):
		return false, address.ErrMirror
	case reservation || claim.Workload == "":
		return reservation, nil
	}
	return k.Addresses.Suits(ctx, claim, allocation)
}

// warnOfBudget reports that the addresses of a deleted pod are freed. Its text is the same for all pods of a workload, so that they share one event.
func (k *Keeper) warnOfBudget(ctx context.Context, port kubeovnv1.Port, most int) {
	var about client.Object = &corev1.Namespace{}
	owner, ordinal := allocations.StatefulSetOf(port.Key())
	set := &appsv1.StatefulSet{}
	if ordinal >= 0 && k.Client.Get(ctx, owner, set, client.UnsafeDisableDeepCopy) == nil {
		about = set
	} else if err := k.Client.Get(ctx, client.ObjectKey{Name: port.Namespace}, about, client.UnsafeDisableDeepCopy); err != nil {
		return // the namespace is deleted, too
	}
	k8s.Warn(k.Recorder, about, reasonNotRetained, fmt.Sprintf("namespace %s retains %d addresses of absent pods: further deleted pods get other addresses when they are created again. "+
		"Scale down or delete workloads whose pods cannot start", port.Namespace, most))
}

// PodType returns the kind of workload that retains a pod's addresses while the pod is absent; empty if no workload recreates the pod
// by name.
func (k *Keeper) PodType(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	switch {
	case k.KeepMachines && kubeovnv1.MachineOf(pod) != "":
		return kubeovnv1.PodTypeVirtualMachine
	case owner != nil && owner.Kind == kubeovnv1.PodTypeStatefulSet && strings.HasPrefix(owner.APIVersion, "apps/"):
		return kubeovnv1.PodTypeStatefulSet
	}
	return ""
}

// awaitedBy returns the kind of workload that will recreate the pod of a port, so that its addresses are retained; empty if none will.
func (k *Keeper) awaitedBy(ctx context.Context, port kubeovnv1.Port, ip *kubeovnv1.IP) (string, error) {
	if k.isMachines(port, ip) {
		if !k.machines.mayExist(port.Key()) {
			return "", nil
		}
		return kubeovnv1.PodTypeVirtualMachine, nil
	}
	owner, ordinal := allocations.StatefulSetOf(port.Key())
	if ordinal < 0 {
		return "", nil
	}
	set, err := k8s.Find[appsv1.StatefulSet](ctx, k.Client, owner, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("get StatefulSet %s: %w", owner, err)
	}
	if set == nil || set.DeletionTimestamp != nil || ordinal < ordinalsOf(set).first || ordinal >= ordinalsOf(set).end {
		return "", nil
	}
	return kubeovnv1.PodTypeStatefulSet, nil
}

// isMachines reports whether an allocation belongs to a virtual machine. The retained allocation decides; else the port; else the IP
// object.
func (k *Keeper) isMachines(port kubeovnv1.Port, ip *kubeovnv1.IP) bool {
	if !k.KeepMachines {
		return false
	}
	if before := k.states.of(port.Name); before.state != Held {
		return before.podType == kubeovnv1.PodTypeVirtualMachine
	}
	if _, machine, known := k.PortNamed(port.Name); known {
		return machine
	}
	return ip != nil && ip.Spec.PodType == kubeovnv1.PodTypeVirtualMachine
}
