// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/metadata"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/controllers/pod/retention"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// SetupWithManager adds the controllers of pods and of their IP objects. Call it once, before the manager starts.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	exportMetrics()
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexGroups, groupsOf); err != nil {
		return fmt.Errorf("index pods by security group: %w", err)
	}
	pods, err := metadata.NewForConfigAndClient(metadata.ConfigFor(mgr.GetConfig()), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client of pods: %w", err)
	}
	r.pods = pods.Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	r.pending.pace(r.Allocator.Available)
	r.Allocator.Notify(r.pending.subnetChanged)
	r.followVips()
	r.Sets.Observe(r.setsChanged)
	r.patching = make(chan struct{}, patchesInFlight)
	if err := r.indexMachines(ctx, mgr); err != nil {
		return err
	}
	r.addresses = address.Chooser{
		Client: r.Client, Allocator: r.Allocator, Namespaces: r.Namespaces, Pools: r.Pools, Grants: r.Grants, Networks: r.Networks, SecurePorts: r.SecurePorts,
	}
	r.warner.client, r.warner.namespaces, r.warner.addresses, r.warner.recorder = r.Client, r.Namespaces, &r.addresses, r.Recorder
	r.keeper = retention.Keeper{
		Client: r.Client, Northbound: r.Northbound, Allocator: r.Allocator, Addresses: &r.addresses, IPObjects: &r.ipObjects, Recorder: r.Recorder,
		KeepMachines: r.KeepMachines, MaxRetained: r.MaxRetained, PodAt: r.podAt, PortNamed: r.portNamed, Waiting: r.pending.problem, Enqueue: r.pending.AddKey,
	}
	r.ipObjects = ipobject.Writer{
		Client: r.Client, Northbound: r.Northbound, Allocator: r.Allocator, Allocations: &r.keeper, Networks: r.Networks, Gate: r.Gate, Pace: r.IPWritePace,
		Warn: func(ip *kubeovnv1.IP, message string) { k8s.Warn(r.Recorder, ip, reasonNoAddress, message) },
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("pod").
		Watches(&corev1.Pod{}, r.onPod()).
		Watches(&kubeovnv1.Subnet{}, r.onSubnet()).
		Watches(&kubeovnv1.Vpc{}, r.onSpec()).
		Watches(&corev1.Namespace{}, r.onNamespace()).
		Watches(&appsv1.StatefulSet{}, r.keeper.OnStatefulSet()).
		Watches(&kubeovnv1.IPPool{}, r.onSpec()).
		Watches(&kubeovnv1.Vip{}, r.onVip()).
		Watches(&kubeovnv1.SecurityGroup{}, r.onGroup()).
		Watches(&kubeovnv1.Vlan{}, r.onVlan()).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.onNode), builder.WithPredicates(k8s.ComesOrGoes)).
		Watches(&kubeovnv1.EgressAddress{}, handler.EnqueueRequestsFromMapFunc(r.onEgress), builder.WithPredicates(k8s.Changed(k8s.ViewAddressesOfEgress))).
		WatchesRawSource(&r.pending.RequestSource).
		WatchesRawSource(r.Gate.After(r.keeper.FollowMachines(pods))).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindPod)).
		WatchesRawSource(reconciler.Orphans(mgr.GetCache(), r.Gate, &corev1.Pod{}, reconciler.OwnersOf(r.Northbound, translate.KindPod))).
		WithOptions(r.Gate.Workers(r.Workers)).
		Complete(r.Gate.Reconciler(r))
	return errors.Join(err, r.ipObjects.SetupWithManager(mgr))
}

// portNamed returns the port with a name, and whether its owner is a virtual machine. known is false if no pod has it.
func (r *Reconciler) portNamed(name string) (port kubeovnv1.Port, machine, known bool) {
	h, known := r.ports.named(name)
	return h.Port, h.machine, known
}

// onPod enqueues pods whose port may need a change. At the start, pods that already have their network come last.
func (r *Reconciler) onPod() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q k8s.Queue) {
			pod := e.Object.(*corev1.Pod)
			r.indexLabels(ctx, nil, pod)
			if r.machineOf(pod) != "" {
				r.machineSeen.Store(true)
			}
			if allocations.OnPodNetwork(pod) { // ports of other pods come from the engine's owners (reconciler.Orphans)
				r.arrived(pod, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			r.updated(ctx, e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod), q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q k8s.Queue) {
			r.latencies.end(e.Object.GetUID())
			r.warner.forget(e.Object.GetUID())
			q.Add(requestFor(e.Object))
			r.machinePodGone(e.Object.(*corev1.Pod), q)
		},
	}
}

// arrived enqueues a pod that is new on the pod network. A pod without a network gets normal priority, even in the initial list, where q
// lowers the priority.
func (r *Reconciler) arrived(pod *corev1.Pod, q k8s.Queue) {
	r.seen(pod)
	if kubeovnv1.IsPublished(pod) {
		q.Add(requestFor(pod))
		return
	}
	r.latencies.begin(pod)
	r.ipObjects.PodCame()
	reconciler.AddWith(q, 0, requestFor(pod))
}

func (r *Reconciler) updated(ctx context.Context, before, after *corev1.Pod, q k8s.Queue) {
	r.indexLabels(ctx, before, after)
	own, from := r.podWrites.shows(after)
	if own && r.outdated(ctx, after.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()], from) {
		reconciler.AddWith(q, handler.LowPriority, requestFor(after))
	}
	if before.UID != after.UID || !allocations.OnPodNetwork(after) || !own && kubeovnv1.IsPublished(after) {
		r.latencies.end(before.UID)
	}
	switch {
	case !changesPort(before, after, own):
	case allocations.OnPodNetwork(after) && (before.UID != after.UID || !allocations.OnPodNetwork(before)):
		r.arrived(after, q)
	default:
		q.Add(requestFor(after))
	}
}

// outdated reports whether the spec of the subnet in a pod's results has changed since the spec that the pod's results come from. The event of such a
// change enqueues pods by their cached annotations, so it misses pods whose results were not in the cache yet.
func (r *Reconciler) outdated(ctx context.Context, subnet string, from specOf) bool {
	s := &kubeovnv1.Subnet{}
	return subnet != "" && r.Client.Get(ctx, client.ObjectKey{Name: subnet}, s, client.UnsafeDisableDeepCopy) == nil &&
		specOf{s.UID, k8s.ViewSubnet(s)} != from
}

func requestFor(o client.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}
}

// changesPort reports whether an update may affect the pod's port. It is false for most updates of a pod's status, and for updates that
// only contain this process's own results, apart from those of an underlay pod that runs: OVN gets its addresses then.
func changesPort(before, after *corev1.Pod, own bool) bool {
	return before.UID != after.UID || allocations.OnPodNetwork(before) != allocations.OnPodNetwork(after) || before.Spec.NodeName != after.Spec.NodeName ||
		!agree(before.Annotations, after.Annotations, requests) || !own && !agree(before.Annotations, after.Annotations, kubeovnv1.ResultKeys(kubeovnv1.ProviderOVN)) ||
		(runs(before) != runs(after) || own && runs(after)) && after.Annotations[kubeovnv1.AnnotationProviderNetwork.Key()] != ""
}

// onSubnet enqueues a subnet's pods if applied settings that their ports use change, and wakes all waiting pods if any subnet changes.
func (r *Reconciler) onSubnet() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, k8s.Queue) { r.pending.wakeAll() },
		DeleteFunc: func(context.Context, event.DeleteEvent, k8s.Queue) { r.pending.wakeAll() },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*kubeovnv1.Subnet), e.ObjectNew.(*kubeovnv1.Subnet)
			changed := viewSubnet(before) != viewSubnet(after)
			if changed {
				r.pending.wakeAll()
			}
			if limits.OfSubnet(before) != limits.OfSubnet(after) || changed && podView(k8s.Applied(before)) != podView(k8s.Applied(after)) {
				r.enqueuePodsOf(ctx, after.Name, q)
			}
		},
	}
}

// subnetView is the part of a subnet that waiting pods depend on; it excludes the counts in status.
type subnetView struct {
	k8s.SubnetView
	deleting bool
}

func viewSubnet(s *kubeovnv1.Subnet) subnetView {
	return subnetView{k8s.ViewSubnet(s), s.DeletionTimestamp != nil}
}

// podView is the part of a subnet's applied spec that the ports and annotations of its pods depend on.
func podView(s *kubeovnv1.Subnet) [12]string {
	return [12]string{
		s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.Vpc, fmt.Sprint(s.Spec.MTU),
		fmt.Sprint(s.Spec.EnableDHCP), s.Spec.DHCPV4Options, s.Spec.DHCPV6Options, strings.Join(s.Spec.Vips, " "), string(s.Spec.PortSecurity), s.Spec.Vlan,
		fmt.Sprint(s.Spec.LogicalGateway), s.Spec.SoleNamespace(),
	}
}

// enqueuePodsOf enqueues the pods of a subnet with low priority, after pods without a network.
func (r *Reconciler) enqueuePodsOf(ctx context.Context, subnet string, q k8s.Queue) {
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.MatchingFields{lookup.IndexPodSubnet: subnet}, client.UnsafeDisableDeepCopy)
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot list the pods of a subnet", "subnet", subnet)
		return
	}
	for i := range pods.Items {
		reconciler.AddWith(q, handler.LowPriority, requestFor(&pods.Items[i]))
	}
}

// onSpec wakes the waiting pods if the applied spec of a VPC or an IPPool, the external subnets of a VPC, or the problem of an IPPool changes, which may change the
// subnets of namespaces or the use of subnets and pools.
func (r *Reconciler) onSpec() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, k8s.Queue) { r.pending.wakeAll() },
		DeleteFunc: func(context.Context, event.DeleteEvent, k8s.Queue) { r.pending.wakeAll() },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ k8s.Queue) {
			if viewSpec(e.ObjectOld) != viewSpec(e.ObjectNew) {
				r.pending.wakeAll()
			}
		},
	}
}

// onEgress wakes the waiting pods: one may have requested an address that an EgressAddress had.
func (r *Reconciler) onEgress(context.Context, client.Object) []reconcile.Request {
	r.pending.wakeAll()
	return nil
}

// specView is the part of a VPC or of an IPPool that waiting pods depend on.
type specView struct {
	generation int64
	vpc        k8s.VpcView
	external   string // the external subnets of a VPC
	pool       k8s.SpecView
	why        string // why an IPPool is not valid
}

func viewSpec(o client.Object) specView {
	view := specView{generation: o.GetGeneration()}
	switch o := o.(type) {
	case *kubeovnv1.Vpc:
		view.vpc, view.external = k8s.ViewVpc(o), strings.Join(lookup.ExternalOf(o), ",")
	case *kubeovnv1.IPPool:
		view.pool, view.why = k8s.ViewPool(o), k8s.WhyNotValid("", o.Status.Conditions, o.Generation)
	}
	return view
}

// onNamespace wakes the waiting pods of a namespace: subnets select namespaces by labels.
func (r *Reconciler) onNamespace() handler.EventHandler {
	wake := func(o client.Object) { r.pending.wakeNamespace(o.GetName()) }
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ k8s.Queue) { wake(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ k8s.Queue) { wake(e.ObjectNew) },
	}
}
