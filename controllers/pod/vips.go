// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/vipusers"
)

// Reasons of events on a pod that names a Vip, or an address, that it cannot share.
const (
	reasonVip     = "VipNotShared"
	reasonAddress = "AddressNotShared"
)

var keyVip, keyAAPs, keyPortVips = kubeovnv1.AnnotationVip.Key(), kubeovnv1.AnnotationAAPs.Key(), kubeovnv1.AnnotationPortVips.Key()

// sharedOf returns the subnet's vips that a pod requests to share. It ignores other addresses: otherwise the pod could choose the addresses
// from which its port may send.
func sharedOf(subnet *kubeovnv1.Subnet, pod *corev1.Pod) []netip.Addr {
	shared, _ := splitShared(subnet, pod)
	return shared
}

// splitShared divides the addresses that a pod requests to share into vips of the subnet and others.
func splitShared(subnet *kubeovnv1.Subnet, pod *corev1.Pod) (shared, others []netip.Addr) {
	asked := kubeovnv1.ParsePortVips(pod.Annotations)
	if len(asked) == 0 {
		return nil, nil
	}
	offered := ipfamily.ValidAddrs(subnet.Spec.Vips...)
	for _, address := range asked {
		if slices.Contains(offered, address) {
			shared = append(shared, address)
		} else {
			others = append(others, address)
		}
	}
	return shared, others
}

// requestsOfVip returns the allocation request for the addresses of the Vip that a pod uses as its own.
func (r *Reconciler) requestsOfVip(ctx context.Context, pod *corev1.Pod, request kubeovnv1.PodRequest) ([]ipam.Request, error) {
	name := request.Vip
	vip, reason, err := r.vip(ctx, pod, name)
	switch {
	case err != nil:
		return nil, err
	case reason == "" && vip.Spec.Type != "":
		reason = fmt.Sprintf("is of type %s, which is for no pod: use one without a type", vip.Spec.Type)
	case reason == "" && request.Subnet != "" && request.Subnet != vipSubnet(vip):
		reason = fmt.Sprintf("is of subnet %s, and annotation %s asks for another one", vipSubnet(vip), kubeovnv1.AnnotationLogicalSwitch.Key())
	}
	addresses, known := vipAddresses(vip), true
	if reason == "" && len(addresses) == 0 {
		reason, known = withoutAddress(vip)
	}
	if reason != "" {
		return nil, &problem{
			message: fmt.Sprintf("Vip %s, which annotation %s names, %s", name, keyVip, reason), subnets: subnetsOf(vip), quiet: !known,
		}
	}
	if vip.Spec.Namespace != pod.Namespace { // the namespace of a Vip may use the Vip's subnet
		if err := r.mayUseSubnet(ctx, pod, vipSubnet(vip)); err != nil {
			return nil, err
		}
	}
	want := ipam.Request{Subnet: vipSubnet(vip), Addresses: addresses, AnyPool: true, SharedBy: translate.VipHolder(name)}
	want.MAC, _ = net.ParseMAC(vip.Status.MAC)
	for _, a := range addresses {
		want.Families = append(want.Families, ipfamily.Of(a))
	}
	return []ipam.Request{want}, nil
}

// withoutAddress returns why a Vip has no address. known is false while its controller has not tried: the pod may have been created together
// with it.
func withoutAddress(vip *kubeovnv1.Vip) (reason string, known bool) {
	why, known := k8s.WhyNotReady(vip.Status.Conditions, vip.Generation)
	if why == "" {
		return "has no address yet", known
	}
	return "has no address yet: " + why, known
}

// vip returns a Vip with its applied spec, and a reason if the pod may not use it.
func (r *Reconciler) vip(ctx context.Context, pod *corev1.Pod, name string) (vip *kubeovnv1.Vip, reason string, err error) {
	vip, err = k8s.Find[kubeovnv1.Vip](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("get Vip %s: %w", name, err)
	case vip == nil:
		return nil, "does not exist: create it, or name another one", nil
	case vip.DeletionTimestamp != nil:
		return vip, "is being deleted", nil
	}
	vip = k8s.AppliedVip(vip)
	reason, err = r.Grants.Vip(ctx, pod.Namespace, vip)
	return vip, reason, err
}

func vipSubnet(vip *kubeovnv1.Vip) string { return cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet) }

func subnetsOf(vip *kubeovnv1.Vip) []string {
	if vip == nil {
		return nil
	}
	return []string{vipSubnet(vip)}
}

// vipAddresses returns the addresses that a Vip has been allocated.
func vipAddresses(vip *kubeovnv1.Vip) []netip.Addr {
	if vip == nil {
		return nil
	}
	return ipfamily.ValidAddrs(vip.Status.V4IP, vip.Status.V6IP)
}

// shared returns the addresses of the Vips that a pod shares in its subnet. Only a port with port security needs them.
func (r *Reconciler) shared(ctx context.Context, pod *corev1.Pod, subnet *kubeovnv1.Subnet) ([]netip.Addr, error) {
	if !r.securesPort(pod, subnet) {
		return nil, nil
	}
	var addresses []netip.Addr
	for _, name := range r.Vips.SharedBy(client.ObjectKeyFromObject(pod)) {
		vip, err := k8s.Find[kubeovnv1.Vip](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get Vip %s: %w", name, err)
		}
		if vip == nil {
			continue
		}
		if vip = k8s.AppliedVip(vip); vip.Spec.Type != "" || vipSubnet(vip) != subnet.Name {
			continue
		}
		denied, err := r.Grants.Vip(ctx, pod.Namespace, vip)
		if err != nil {
			return nil, err
		}
		if denied == "" {
			addresses = append(addresses, vipAddresses(vip)...)
		}
	}
	return addresses, nil
}

// warnOfShared warns a pod's user, once, about addresses in port_vips that the pod does not share.
func (r *Reconciler) warnOfShared(pod *corev1.Pod, subnet *kubeovnv1.Subnet) {
	_, others := splitShared(subnet, pod)
	if said := ipfamily.Join(others); r.unshared.New(pod.UID, said) {
		k8s.Warn(r.Recorder, pod, reasonAddress, fmt.Sprintf("of annotation %s: %s is not among the vips of subnet %s: add it there, or remove it from the annotation",
			keyPortVips, said, subnet.Name))
	}
}

// warnOfVips warns a pod's user about Vips in its annotation that it cannot share.
func (r *Reconciler) warnOfVips(ctx context.Context, pod *corev1.Pod, subnet string) {
	if kubeovnv1.TooLong(pod.Annotations[keyAAPs]) {
		k8s.Warn(r.Recorder, pod, reasonVip, fmt.Sprintf("annotation %s names more than %d Vips: the pod shares none of them", keyAAPs, kubeovnv1.MaxListEntries))
		return
	}
	var wrong []string
	for _, name := range kubeovnv1.ParseAAPs(pod.Annotations) {
		vip, reason, err := r.vip(ctx, pod, name)
		switch {
		case err != nil:
			continue
		case reason == "" && vip.Spec.Type != "":
			reason = "is of type " + vip.Spec.Type
		case reason == "" && vipSubnet(vip) != subnet:
			reason = fmt.Sprintf("is of subnet %s, and the pod of %s", vipSubnet(vip), subnet)
		}
		if reason != "" {
			wrong = append(wrong, "Vip "+name+" "+reason)
		}
	}
	if len(wrong) > 0 { // one event: a second one with the same reason would be dropped
		k8s.Warn(r.Recorder, pod, reasonVip, fmt.Sprintf("of annotation %s: %s", keyAAPs, strings.Join(wrong, "; ")))
	}
}

// onVip wakes the waiting pods if a Vip changes, and enqueues the pods that share it.
func (r *Reconciler) onVip() handler.EventHandler {
	changed := func(vip *kubeovnv1.Vip, q k8s.Queue) {
		r.pending.wakeAll()
		for _, user := range r.Vips.UsersOf(vip.Name) {
			if user.Use&vipusers.Shared != 0 {
				q.Add(ctrl.Request{NamespacedName: user.Pod})
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q k8s.Queue) { changed(e.Object.(*kubeovnv1.Vip), q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q k8s.Queue) { changed(e.Object.(*kubeovnv1.Vip), q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*kubeovnv1.Vip), e.ObjectNew.(*kubeovnv1.Vip)
			if k8s.ViewVip(before) != k8s.ViewVip(after) || !slices.Equal(vipAddresses(before), vipAddresses(after)) {
				changed(after, q)
				return
			}
			was, _ := withoutAddress(before)
			if is, _ := withoutAddress(after); was != is {
				r.pending.wakeAll()
			}
		},
	}
}

// followVips requeues a pod when it starts or stops sharing a Vip.
func (r *Reconciler) followVips() {
	r.Vips.Notify(func(_ string, user vipusers.User) {
		if user.Use&vipusers.Shared != 0 {
			r.pending.AddKey(user.Pod)
		}
	})
}
