// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/selection"
	"github.com/kiln-net/kiln/internal/validation"
)

// reasonNoAddress is the reason of the event on a pod that no address can be found for. It is Kube-OVN's.
const reasonNoAddress = "AcquireAddressFailed"

// reasonNotSupported is the reason of the event on a pod that asks for more than this version does.
const reasonNotSupported = "AnnotationNotSupported"

// reasonInvalid is the reason of the event on a pod with a network that has requests which are not valid.
const reasonInvalid = "AnnotationInvalid"

// attachment is a pod with its addresses and what they are of.
type attachment struct {
	pod      *corev1.Pod
	key      types.NamespacedName // by which its port is known
	machine  string               // that the pod runs
	lease    ipam.Lease
	subnet   *kubeovnv1.Subnet
	cidrs    []netip.Prefix
	gateways []netip.Addr
	shared   []netip.Addr // addresses of Vips, which a port that checks addresses passes
	dhcp     []translate.PodDHCP
	secure   bool // the port drops packets from addresses other than its own
}

// attach finds the pod's lease, or makes one. The error is a *problem when the pod has to wait.
func (r *Reconciler) attach(ctx context.Context, pod *corev1.Pod) (*attachment, error) {
	lease, err := r.lease(ctx, pod)
	if err != nil {
		return nil, err
	}
	subnet, err := r.subnet(ctx, lease.Subnet)
	if err != nil {
		return nil, unheard(err, kubeovnv1.IsPublished(pod))
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
	if a.dhcp, err = ownDHCP(a, cidrs, gateways); err != nil {
		k8s.Warn(r.Recorder, pod, reasonDHCP, err.Error()) // the subnet's are in force
	}
	a.secure = r.securesPort(pod, subnet)
	a.shared, err = r.shared(ctx, pod, subnet)
	return a, err
}

// unheard is err; when it is a problem of a subnet whose pod is connected already, the subnet's condition tells it, not the pod.
func unheard(err error, connected bool) error {
	var p *problem
	if errors.As(err, &p) {
		p.quiet = connected
	}
	return err
}

func ofFamily[T any](values []T, family ipfamily.Family, address func(T) netip.Addr) []T {
	return slices.DeleteFunc(slices.Clone(values), func(v T) bool { return ipfamily.Of(address(v)) != family })
}

// lease returns what the pod holds. What another pod of the same name held is freed first: a pod never inherits.
func (r *Reconciler) lease(ctx context.Context, pod *corev1.Pod) (ipam.Lease, error) {
	key := r.portKey(pod)
	port := portOf(key)
	if err := r.yieldToNode(ctx, key); err != nil {
		return ipam.Lease{}, err
	}
	lease, held := r.Allocator.Lookup(port)
	switch {
	case held && r.owns(pod):
		return lease, nil
	case held:
		inherits, err := r.inherits(ctx, pod, port, lease)
		if err != nil {
			return ipam.Lease{}, r.parted(ctx, pod, err)
		}
		if inherits {
			r.kept.forget(key)
			r.got(ctx, pod, lease)
			return lease, nil
		}
		if err := r.release(ctx, key); err != nil {
			return ipam.Lease{}, fmt.Errorf("free what a pod of the same name held: %w", err)
		}
	}
	return r.choose(ctx, pod, port)
}

// parted is err, which says why a pod does not get what is held under its name. When it has to wait, the pod from before it is gone all the
// same: its port goes, and its address is kept or freed as if there were no pod of that name.
func (r *Reconciler) parted(ctx context.Context, pod *corev1.Pod, err error) error {
	var p *problem
	if !errors.As(err, &p) {
		return err
	}
	if vacated := r.vacate(ctx, client.ObjectKeyFromObject(pod)); vacated != nil {
		return fmt.Errorf("take away what a pod of the same name left: %w", vacated)
	}
	return err
}

// ofNode reports whether a lease is a node's: the join subnet has no pods.
func ofNode(lease ipam.Lease) bool { return lease.Subnet == kubeovnv1.JoinSubnet }

// owns reports whether the lease under the pod's name was made for this very pod.
func (r *Reconciler) owns(pod *corev1.Pod) bool {
	return kubeovnv1.IsPublished(pod) || r.holder(pod) == pod.UID
}

// choose allocates from the first of the pod's subnets that can serve it.
func (r *Reconciler) choose(ctx context.Context, pod *corev1.Pod, port string) (ipam.Lease, error) {
	request, err := kubeovnv1.ParsePodRequest(pod.Annotations)
	if err != nil {
		return ipam.Lease{}, &problem{message: err.Error()}
	}
	if _, err := readDHCP(pod); err != nil {
		return ipam.Lease{}, &problem{message: err.Error()}
	}
	wants, err := r.wants(ctx, pod, port, request)
	if err != nil {
		return ipam.Lease{}, err
	}
	var obstacles, names []string
	full := true
	for _, want := range wants {
		names = append(names, want.Subnet)
		lease, err := r.allocate(ctx, pod, port, want)
		if err == nil {
			r.got(ctx, pod, lease)
			return lease, nil
		}
		obstacle, ok := explain(want.Subnet, err)
		if !ok {
			return ipam.Lease{}, err
		}
		if apart := (*apartError)(nil); errors.As(err, &apart) {
			names = append(names, apart.subnets...)
		}
		obstacles = append(obstacles, obstacle)
		full = full && errors.Is(err, ipam.ErrExhausted)
	}
	return ipam.Lease{}, &problem{message: strings.Join(obstacles, "; "), subnets: names, full: full}
}

// wants are what to ask for, in order: what a user has reserved for the pod, or an address of one of its subnets.
func (r *Reconciler) wants(ctx context.Context, pod *corev1.Pod, port string, request kubeovnv1.PodRequest) ([]ipam.Request, error) {
	ip, err := r.recorder.find(ctx, port)
	if err != nil {
		return nil, err
	}
	if isReservation(ip) {
		want, p := reservedBy(ip)
		if p != nil {
			p.message = fmt.Sprintf("IP %s: %s", ip.Name, p.message)
			return nil, p
		}
		return []ipam.Request{want}, nil
	}
	return r.wantsOf(ctx, pod, request)
}

// got takes note of whom a lease is for.
func (r *Reconciler) got(ctx context.Context, pod *corev1.Pod, lease ipam.Lease) {
	r.ledger.hold(pod)
	r.journeys.reached(pod.UID, legAddress)
	r.warnOfIgnored(pod)
	r.settle(ctx, pod, lease)
	if forwards(pod) {
		r.warnOfForwarding(ctx, pod, lease.Subnet)
	}
	if pod.Annotations[keyAAPs] != "" {
		r.warnOfVips(ctx, pod, lease.Subnet)
	}
}

// warnOfIgnored tells the pod's user which annotations have no effect. A pod is allocated for once, so it is told once.
func (r *Reconciler) warnOfIgnored(pod *corev1.Pod) {
	if keys := validation.IgnoredPodAnnotations(pod.Annotations); len(keys) > 0 {
		k8s.Warn(r.Recorder, pod, reasonNotSupported, "this version does nothing about "+strings.Join(keys, ", "))
	}
}

// warnOfRequests warns the user of a pod that has its network, once, of requests that are not valid.
func (r *Reconciler) warnOfRequests(pod *corev1.Pod) {
	said := ""
	if invalid := kubeovnv1.CheckRequests(kubeovnv1.OnPod, pod.Annotations); len(invalid) > 0 {
		said = errors.Join(invalid...).Error()
	}
	if news(&r.invalid, pod.UID, said) {
		k8s.Warn(r.Recorder, pod, reasonInvalid, "requests that are not valid, correct or remove them: "+said)
	}
}

// candidates are the subnets to try, in order: the one asked for, or those of the pod's namespace.
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

// allocate gives a port an address; pod is nil for one that is kept for a pod to come.
func (r *Reconciler) allocate(ctx context.Context, pod *corev1.Pod, port string, want ipam.Request) (ipam.Lease, error) {
	s, err := r.subnet(ctx, want.Subnet)
	if err != nil {
		return ipam.Lease{}, err
	}
	if s.DeletionTimestamp != nil {
		return ipam.Lease{}, &problem{message: fmt.Sprintf("subnet %s is being deleted: choose another one", want.Subnet)}
	}
	if pod == nil {
		return r.Allocator.Allocate(port, want)
	}
	return r.allocateApart(ctx, pod, s, want)
}

// wanted is what a pod asks a subnet for.
func wanted(subnet string, request kubeovnv1.PodRequest) ipam.Request {
	want := ipam.Request{Subnet: subnet, Addresses: request.Addresses, MAC: request.MAC}
	switch request.Family {
	case corev1.IPv4Protocol:
		want.Families = []ipfamily.Family{ipfamily.IPv4}
	case corev1.IPv6Protocol:
		want.Families = []ipfamily.Family{ipfamily.IPv6}
	}
	return want
}

// subnet returns a subnet whose spec is in force and which pods may use. The error is a *problem otherwise.
func (r *Reconciler) subnet(ctx context.Context, name string) (*kubeovnv1.Subnet, error) {
	p := &problem{subnets: []string{name}}
	s := &kubeovnv1.Subnet{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, s, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil && client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("get subnet %s: %w", name, err)
	case name == kubeovnv1.JoinSubnet:
		p.message = fmt.Sprintf("subnet %s is for nodes: choose another one", name)
	case err != nil:
		p.message = fmt.Sprintf("subnet %s does not exist", name)
	case !selection.OnFirstNetwork(s):
		p.message = fmt.Sprintf("subnet %s is of provider %s: choose one of provider %s", name, s.Spec.Provider, kubeovnv1.ProviderOVN)
	case !k8s.ViewSubnet(s).Validated:
		p.message = fmt.Sprintf("subnet %s is not valid: its condition %s says why", name, kubeovnv1.ConditionValidated)
	default:
		return s, nil
	}
	return nil, p
}

// explain says in words for the pod's user why a subnet cannot serve it; false for an error that is not the user's.
func explain(subnet string, err error) (string, bool) {
	var (
		p         *problem
		taken     *ipam.TakenError
		outside   *ipam.OutsideError
		exhausted *ipam.ExhaustedError
	)
	switch {
	case errors.As(err, &p):
		return p.message, true
	case errors.As(err, &taken):
		return taken.Error() + ": ask for another one", true
	case errors.As(err, &outside):
		return outside.Error() + ": ask for one inside", true
	case errors.Is(err, ipam.ErrNotHeld):
		return "the Vip does not have its addresses: its conditions say why", true
	case errors.Is(err, ipam.ErrNoPool):
		return err.Error() + ": its condition Validated may say why", true
	case errors.As(err, &exhausted) && len(exhausted.Pools) > 0:
		return err.Error() + ": delete pods, add to its ips or shorten excludeIps of the subnet", true
	case errors.As(err, &exhausted):
		return fmt.Sprintf("subnet %s is full, it has no free %s address: delete pods, enlarge its cidrBlock or shorten its excludeIps",
			subnet, exhausted.Family), true
	case errors.Is(err, ipam.ErrNoFamily):
		return fmt.Sprintf("subnet %s has no CIDR of the family in annotation %s", subnet, kubeovnv1.AnnotationIPFamily.Key()), true
	case errors.Is(err, ipam.ErrNoSubnet):
		return fmt.Sprintf("subnet %s is not in force yet", subnet), true
	}
	return "", false
}

// port is what the pod's rows follow from.
func (a *attachment) port(others []*corev1.Pod) translate.PodInputs {
	in := translate.PodInputs{
		Namespace:    a.key.Namespace,
		Name:         a.key.Name,
		Node:         a.pod.Spec.NodeName,
		Subnet:       a.subnet.Name,
		Vpc:          a.vpc(),
		Addresses:    a.lease.Addresses,
		MAC:          a.lease.MAC,
		DHCP:         a.answersDHCP(),
		OwnDHCP:      a.dhcp,
		Vips:         sharedOf(a.subnet, a.pod),
		NorthGateway: kubeovnv1.ParseNorthGateway(a.pod.Annotations),
		Unknown:      forwards(a.pod) && !a.secure,
		Shared:       a.shared,
		PortSecurity: a.secure,
	}
	if a.machine == "" {
		in.UID = string(a.pod.UID)
	}
	for _, other := range others {
		in.Others = append(in.Others, other.Spec.NodeName)
	}
	return in
}

// answersDHCP are the CIDRs in which the pod's subnet answers DHCP requests.
func (a *attachment) answersDHCP() []netip.Prefix {
	if !a.subnet.Spec.EnableDHCP {
		return nil
	}
	return a.cidrs
}

// network is what the agent needs to connect the pod.
func (a *attachment) network() kubeovnv1.PodNetwork {
	return kubeovnv1.PodNetwork{
		UID:           a.pod.UID,
		Allocated:     true,
		Routed:        true,
		Addresses:     a.lease.Addresses,
		MAC:           a.lease.MAC,
		CIDRs:         a.cidrs,
		Gateways:      a.gateways,
		LogicalSwitch: a.subnet.Name,
		LogicalRouter: a.vpc(),
		MTU:           int(a.subnet.Spec.MTU),
		NICType:       kubeovnv1.PodNICTypeVeth,
		Machine:       a.machine,
	}
}

// networkFor is network for another pod of the same port.
func (a *attachment) networkFor(pod *corev1.Pod) kubeovnv1.PodNetwork {
	network := a.network()
	network.UID = pod.UID
	return network
}

func (a *attachment) vpc() string { return cmp.Or(a.subnet.Spec.Vpc, kubeovnv1.DefaultVpc) }
