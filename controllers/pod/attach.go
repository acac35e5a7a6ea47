// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// reasonNoAddress is the reason of the event on a pod that cannot get an address. It is the same as Kube-OVN's.
const reasonNoAddress = "AcquireAddressFailed"

// reasonNotSupported is the reason of the event on a pod with annotations that this version ignores.
const reasonNotSupported = "AnnotationNotSupported"

// reasonInvalid is the reason of the event on a connected pod with invalid requests in its annotations.
const reasonInvalid = "AnnotationInvalid"

// attach returns the pod's attachment; it allocates a lease if there is none. The error is a *problem if the pod has to wait.
func (r *Reconciler) attach(ctx context.Context, pod *corev1.Pod) (*attachment, error) {
	lease, err := r.lease(ctx, pod)
	if err != nil {
		return nil, err
	}
	subnet, err := r.subnet(ctx, lease.Subnet)
	if err != nil {
		return nil, suppressEvent(err, kubeovnv1.IsPublished(pod))
	}
	a := &attachment{pod: pod, key: r.portKey(pod), machine: r.machineOf(pod), lease: lease, subnet: subnet}
	cidrs, cidrErr := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	gateways, gatewayErr := ipfamily.ParseAddrs(subnet.Spec.Gateway)
	if err := errors.Join(cidrErr, gatewayErr); err != nil {
		return nil, fmt.Errorf("read subnet %s: %w", subnet.Name, err)
	}
	for _, address := range lease.Addresses {
		family := ipfamily.Of(address)
		a.cidrs = append(a.cidrs, ofFamily(cidrs, family, netip.Prefix.Addr)...)
		a.gateways = append(a.gateways, ofFamily(gateways, family, func(g netip.Addr) netip.Addr { return g })...)
	}
	if a.vlan, err = r.vlan(ctx, subnet); err != nil {
		return nil, err
	}
	if a.dhcp, err = ownDHCP(a, cidrs, gateways); err != nil {
		k8s.Warn(r.Recorder, pod, reasonDHCP, err.Error()) // the subnet's options still apply
	}
	a.secure = r.securesPort(pod, subnet)
	a.shared, err = r.shared(ctx, pod, subnet)
	return a, err
}

// suppressEvent marks a subnet problem as quiet if the pod is already connected: the Subnet's condition reports it, not an event on the pod. It
// returns err.
func suppressEvent(err error, connected bool) error {
	var p *problem
	if errors.As(err, &p) {
		p.quiet = p.quiet || connected
	}
	return err
}

func ofFamily[T any](values []T, family ipfamily.Family, address func(T) netip.Addr) []T {
	return slices.DeleteFunc(slices.Clone(values), func(v T) bool { return ipfamily.Of(address(v)) != family })
}

// lease returns the pod's lease. It first frees the lease of a previous pod of the same name, unless the pod inherits it.
func (r *Reconciler) lease(ctx context.Context, pod *corev1.Pod) (ipam.Lease, error) {
	key := r.portKey(pod)
	port := leases.PortOf(key)
	if err := errors.Join(r.yieldToNode(ctx, key), r.yieldToLocalnet(ctx, key)); err != nil {
		return ipam.Lease{}, err
	}
	lease, held := r.Allocator.Lookup(port)
	switch {
	case held && r.owns(pod):
		_, early := r.retained.PodType(key) // at the start, the cache did not have the pod yet
		if early {
			r.retained.Forget(key)
		}
		if early || r.machineOf(pod) != "" && r.vpcPods.moved(port, pod.Spec.NodeName) {
			r.settle(ctx, pod, lease)
		}
		return lease, nil
	case held:
		inherits, err := r.inherits(ctx, pod, port, lease)
		if err != nil {
			return ipam.Lease{}, r.releasePredecessor(ctx, pod, err)
		}
		if inherits {
			r.got(ctx, pod, port, lease, leases.SourceRetained)
			return lease, nil
		}
		if err := r.freeLease(ctx, key, "another pod has the name now, and does not inherit them"); err != nil {
			return ipam.Lease{}, fmt.Errorf("free the lease of a pod of the same name: %w", err)
		}
	}
	return r.choose(ctx, pod, port)
}

// releasePredecessor is called when the pod of this name cannot take over the existing lease. If err is a *problem, so that the pod has to wait,
// releasePredecessor releases the previous pod: it removes the port, and retains or frees the address as if no pod of this name existed. It returns
// err. Each attempt of the waiting pod calls it again, so it must not change the waiting list: a pod that is new there is retried at once.
func (r *Reconciler) releasePredecessor(ctx context.Context, pod *corev1.Pod, err error) error {
	var p *problem
	if !errors.As(err, &p) {
		return err
	}
	if _, vacated := r.onPodGone(ctx, r.portKey(pod)); vacated != nil {
		return fmt.Errorf("remove the port of the previous pod of this name: %w", vacated)
	}
	return err
}

// owns reports whether the lease under the pod's name was allocated for this pod, by UID.
func (r *Reconciler) owns(pod *corev1.Pod) bool {
	return kubeovnv1.IsPublished(pod) || r.holder(pod) == pod.UID
}

// choose allocates from the first of the pod's subnets that has an address for it.
func (r *Reconciler) choose(ctx context.Context, pod *corev1.Pod, port string) (ipam.Lease, error) {
	request, err := kubeovnv1.ParsePodRequest(pod.Annotations)
	if err != nil {
		return ipam.Lease{}, &problem{message: err.Error()}
	}
	if _, err := readDHCP(pod); err != nil {
		return ipam.Lease{}, &problem{message: err.Error()}
	}
	wants, err := r.allocationRequests(ctx, pod, port, request)
	if err != nil {
		return ipam.Lease{}, err
	}
	var obstacles, names []string
	full, early := true, false
	for _, want := range wants {
		names = append(names, want.Subnet)
		lease, err := r.allocate(ctx, pod, port, want)
		if err == nil {
			r.got(ctx, pod, port, lease, leases.SourceOf(want))
			return lease, nil
		}
		obstacle, ok := explain(want.Subnet, err)
		if !ok {
			return ipam.Lease{}, err
		}
		cause, checked := r.causeOf(ctx, err, want, request.Vip)
		obstacle, early = obstacle+cause, early || !checked
		if overlap := (*overlapError)(nil); errors.As(err, &overlap) {
			names = append(names, overlap.subnets...)
			if exhausted := (*ipam.ExhaustedError)(nil); len(overlap.subnets) > 0 && errors.As(err, &exhausted) {
				obstacle += fmt.Sprintf(" (a pod of a custom VPC gets no address of a pod in subnet %s, because every node reaches those)",
					strings.Join(overlap.subnets, ", "))
			}
		}
		obstacles = append(obstacles, obstacle)
		full = full && errors.Is(err, ipam.ErrExhausted)
		p := (*problem)(nil)
		early = early || errors.As(err, &p) && p.quiet
	}
	return ipam.Lease{}, &problem{message: strings.Join(obstacles, "; "), subnets: names, full: full, quiet: early}
}

// causeOf returns, as the end of a message, why an object is not applied that a pod needs for its address: tenants cannot read these objects. checked
// is false while a controller has not tried to apply it: the pod may have been created together with it.
func (r *Reconciler) causeOf(ctx context.Context, err error, want ipam.Request, vip string) (cause string, checked bool) {
	switch {
	case errors.Is(err, ipam.ErrNoPool):
		return r.whyNoPool(ctx, want.Pools)
	case errors.Is(err, ipam.ErrNoSubnet):
		if s, err := r.findSubnet(ctx, want.Subnet); err == nil && s != nil {
			cause, checked = k8s.WhyNotReady(s.Status.Conditions, s.Generation)
		}
	case errors.Is(err, ipam.ErrNotHeld):
		if v, err := k8s.Find[kubeovnv1.Vip](ctx, r.Client, client.ObjectKey{Name: vip}, client.UnsafeDisableDeepCopy); err == nil && v != nil {
			cause, checked = k8s.WhyNotReady(v.Status.Conditions, v.Generation)
		}
	default:
		return "", true
	}
	if cause != "" {
		cause = ": " + cause
	}
	return cause, checked
}

// allocationRequests returns the allocation requests for a pod, in order: one for the addresses that a user has reserved for the pod, or else the
// requests of requestsOf.
func (r *Reconciler) allocationRequests(ctx context.Context, pod *corev1.Pod, port string, request kubeovnv1.PodRequest) ([]ipam.Request, error) {
	ip, err := r.ipObjects.Find(ctx, port)
	if err != nil {
		return nil, err
	}
	if leases.IsReservation(ip) {
		if kubeovnv1.IsMirror(pod.Annotations) {
			return nil, mirrorName()
		}
		want, err := leases.RequestOf(ip)
		if err != nil {
			return nil, &problem{message: fmt.Sprintf("IP %s: %v", ip.Name, err)}
		}
		return []ipam.Request{want}, nil
	}
	return r.requestsOf(ctx, pod, request)
}

// got records that a lease belongs to the pod, and warns the pod's user.
func (r *Reconciler) got(ctx context.Context, pod *corev1.Pod, port string, lease ipam.Lease, source leases.Source) {
	leases.LogGiven(logr.FromContextOrDiscard(ctx), port, lease, source)
	r.retained.Forget(r.portKey(pod))
	r.podWrites.hold(pod)
	r.latencies.reached(pod.UID, stageAddress)
	r.warnOfIgnored(pod)
	r.warnOfMirror(ctx, pod)
	r.settle(ctx, pod, lease)
	if forwards(pod) {
		r.warnOfForwarding(ctx, pod, lease.Subnet)
	}
	if pod.Annotations[keyAAPs] != "" {
		r.warnOfVips(ctx, pod, lease.Subnet)
	}
}

// warnOfIgnored warns the pod's user about annotations that have no effect. It runs once per pod, because a pod gets its lease once.
func (r *Reconciler) warnOfIgnored(pod *corev1.Pod) {
	if keys := validation.IgnoredPodAnnotations(pod.Annotations); len(keys) > 0 {
		k8s.Warn(r.Recorder, pod, reasonNotSupported, "this version does nothing about "+strings.Join(keys, ", "))
	}
}

// warnOfRequests warns the user of a connected pod, once, about invalid requests.
func (r *Reconciler) warnOfRequests(pod *corev1.Pod) {
	said := ""
	if invalid := kubeovnv1.CheckRequests(kubeovnv1.OnPod, pod.Annotations); len(invalid) > 0 {
		said = errors.Join(invalid...).Error()
	}
	if r.invalid.New(pod.UID, said) {
		k8s.Warn(r.Recorder, pod, reasonInvalid, "requests that are not valid, correct or remove them: "+said)
	}
}

// candidates returns the subnets to try, in order: the requested one, or the subnets of the pod's namespace.
func (r *Reconciler) candidates(ctx context.Context, pod *corev1.Pod, request kubeovnv1.PodRequest) ([]string, error) {
	if request.Subnet != "" {
		return []string{request.Subnet}, r.mayUseSubnet(ctx, pod, request.Subnet)
	}
	ns := &corev1.Namespace{}
	switch err := r.Client.Get(ctx, client.ObjectKey{Name: pod.Namespace}, ns, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err): // the watch of pods is ahead of the watch of namespaces, which wakes the pod
		return nil, &problem{message: "its namespace is not known yet", quiet: true}
	case err != nil:
		return nil, fmt.Errorf("get namespace: %w", err)
	}
	return r.Namespaces.Subnets(ctx, ns)
}

// allocate allocates an address for a port. pod is nil if the address is reserved for a future pod.
func (r *Reconciler) allocate(ctx context.Context, pod *corev1.Pod, port string, want ipam.Request) (ipam.Lease, error) {
	s, err := r.subnet(ctx, want.Subnet)
	if err != nil {
		return ipam.Lease{}, err
	}
	if s.DeletionTimestamp != nil {
		return ipam.Lease{}, &problem{message: fmt.Sprintf("subnet %s is being deleted: choose another one", want.Subnet)}
	}
	if a, is := lookup.SharedAmong(&s.Spec, want.Addresses); is && want.SharedBy == "" { // the addresses of a Vip are checked when it gets them
		return ipam.Lease{}, &problem{message: fmt.Sprintf(
			"address %s is one of the vips of subnet %s, which pods share: ask for another one, or share it by annotation %s", a, s.Name, keyPortVips)}
	}
	if pod == nil {
		return r.Allocator.Allocate(port, want)
	}
	return r.allocateUnambiguous(ctx, pod, s, withRandomMAC(s, want))
}

// allocationRequest returns a pod's allocation request to a subnet.
func allocationRequest(subnet string, request kubeovnv1.PodRequest) ipam.Request {
	want := ipam.Request{Subnet: subnet, Addresses: request.Addresses, MAC: request.MAC}
	switch request.Family {
	case corev1.IPv4Protocol:
		want.Families = []ipfamily.Family{ipfamily.IPv4}
	case corev1.IPv6Protocol:
		want.Families = []ipfamily.Family{ipfamily.IPv6}
	}
	return want
}

// subnet returns a subnet that pods may use, with its last valid spec. Otherwise the error is a *problem, which is quiet while the first spec of
// the subnet is not validated yet: the pod may have been created together with it.
func (r *Reconciler) subnet(ctx context.Context, name string) (*kubeovnv1.Subnet, error) {
	p := &problem{subnets: []string{name}}
	s, err := r.findSubnet(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case name == kubeovnv1.JoinSubnet:
		p.message = fmt.Sprintf("subnet %s is for nodes: choose another one", name)
	case s == nil:
		p.message = fmt.Sprintf("subnet %s does not exist: create it, or name another one", name)
	case !lookup.OnFirstNetwork(s):
		p.message = fmt.Sprintf("subnet %s is of provider %s: choose one of provider %s", name, s.Spec.Provider, kubeovnv1.ProviderOVN)
	case k8s.ValidSpec(s) == nil:
		p.message = k8s.WhyNotValid("subnet "+name, s.Status.Conditions, s.Generation)
		p.quiet = !k8s.ViewSubnet(s).Checked
	default:
		return s, nil
	}
	return nil, p
}

// findSubnet returns a subnet with its applied spec, nil if it does not exist. The caller must not change it.
func (r *Reconciler) findSubnet(ctx context.Context, name string) (*kubeovnv1.Subnet, error) {
	return appliedSubnet(ctx, r.Client, name)
}

func appliedSubnet(ctx context.Context, reader client.Reader, name string) (*kubeovnv1.Subnet, error) {
	s, err := k8s.Find[kubeovnv1.Subnet](ctx, reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get subnet %s: %w", name, err)
	case s == nil:
		return nil, nil //nolint:nilnil // as k8s.Find
	}
	return k8s.Applied(s), nil
}

// explain returns a message for the pod's user that says why a subnet cannot serve the pod; false for an error that the user did not
// cause.
func explain(subnet string, err error) (string, bool) {
	var (
		p         *problem
		taken     *ipam.TakenError
		outside   *ipam.OutsideError
		exhausted *ipam.ExhaustedError
		ports     *ipam.PortsError
	)
	switch {
	case errors.As(err, &p):
		return p.message, true
	case errors.As(err, &taken):
		return "AddressConflict: " + taken.Error() + ": ask for another one", true // the word is Kube-OVN's, which tools look for
	case errors.As(err, &outside):
		return outside.Error() + ": ask for one inside", true
	case errors.Is(err, ipam.ErrNotHeld):
		return "the Vip does not have its addresses yet", true
	case errors.Is(err, ipam.ErrNoPool):
		return err.Error(), true
	case errors.As(err, &ports):
		return fmt.Sprintf("subnet %s is full: %v: delete pods, or serve the namespace with another subnet", subnet, ports), true
	case errors.As(err, &exhausted) && len(exhausted.Pools) > 0:
		return err.Error() + ": delete pods, add to its ips or shorten excludeIps of the subnet", true
	case errors.As(err, &exhausted):
		return fmt.Sprintf("subnet %s is full, it has no free %s address: delete pods, enlarge its cidrBlock or shorten its excludeIps",
			subnet, exhausted.Family), true
	case errors.Is(err, ipam.ErrNoFamily):
		return fmt.Sprintf("subnet %s has no CIDR of the family in annotation %s: correct the annotation, or name another subnet", subnet, kubeovnv1.AnnotationIPFamily.Key()), true
	case errors.Is(err, ipam.ErrNoSubnet):
		return fmt.Sprintf("subnet %s is not applied yet", subnet), true
	}
	return "", false
}
