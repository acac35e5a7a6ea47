// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reasons of events on a connected pod with requests that have no effect.
const (
	reasonNotSupported  = "AnnotationNotSupported" // annotations that this version ignores
	reasonInvalid       = "AnnotationInvalid"
	reasonMirror        = "StaticPodRequestsIgnored" // of a mirror pod (kubeovnv1.IsMirror)
	reasonVip           = "VipNotShared"
	reasonAddress       = "AddressNotShared"
	reasonNoGroup       = "SecurityGroupNotFound"
	reasonDeniedGroup   = "SecurityGroupNotGranted" // the group does not list the pod's namespace
	reasonTooManyGroups = "TooManySecurityGroups"
	reasonLimitAdjusted = "LimitAdjusted"
)

// occasion is when a warning is computed.
type occasion int

const (
	// once: when the pod gets its allocation, which happens once per pod.
	once occasion = iota
	// always: in each pass of a connected pod. The event is sent when its text changes.
	always
)

// warner warns the users of pods of requests that have no effect.
type warner struct {
	client     client.Client
	namespaces *lookup.Namespaces
	addresses  *address.Chooser
	recorder   events.EventRecorder
	reports    reconciler.Reports[report, string]
}

// warning returns the reason and the text of an event on a pod; an empty text is no event.
type warning struct {
	occasion occasion
	of       func(*warner, context.Context, *connection) (reason, text string)
}

var warnings = []warning{
	{once, (*warner).ignoredRequests}, {once, (*warner).ignoredOfMirror}, {once, (*warner).ignoredForwarding}, {once, (*warner).unsharedVips},
	{always, (*warner).invalidRequests}, {always, (*warner).groupsWithoutEffect}, {always, (*warner).unsharedAddresses},
	{always, (*warner).adjustedLimits},
}

// report identifies a warning of a pod by its index in warnings.
type report struct {
	pod     types.UID
	warning int
}

// warn sends the warnings of an occasion to the user of a pod.
func (w *warner) warn(ctx context.Context, c *connection, now occasion) {
	for i, warning := range warnings {
		if warning.occasion != now {
			continue
		}
		reason, text := warning.of(w, ctx, c)
		if now == always && !w.reports.New(report{c.pod.UID, i}, text) || text == "" {
			continue
		}
		k8s.Warn(w.recorder, c.pod, reason, text)
	}
}

// forget forgets the warnings of a deleted pod.
func (w *warner) forget(pod types.UID) {
	for i := range warnings {
		w.reports.Forget(report{pod, i})
	}
}

// ignoredRequests warns of annotations that have no effect.
func (w *warner) ignoredRequests(_ context.Context, c *connection) (reason, text string) {
	if keys := validation.IgnoredPodAnnotations(c.pod.Annotations); len(keys) > 0 {
		text = "this version does nothing about " + strings.Join(keys, ", ")
	}
	return reasonNotSupported, text
}

// invalidRequests warns of invalid requests of a connected pod.
func (w *warner) invalidRequests(_ context.Context, c *connection) (reason, text string) {
	if invalid := kubeovnv1.CheckRequests(kubeovnv1.OnPod, c.pod.Annotations); len(invalid) > 0 {
		text = "requests that are not valid, correct or remove them: " + errors.Join(invalid...).Error()
	}
	return reasonInvalid, text
}

// ignoredForwarding warns if port security is on: the port drops packets from other addresses, and gets no packets to them
// either (ovn-nb(5), port_security).
func (w *warner) ignoredForwarding(ctx context.Context, c *connection) (reason, text string) {
	if !c.asks.forwards {
		return "", ""
	}
	s, err := address.Subnet(ctx, w.client, c.allocation.Subnet)
	if err == nil && s != nil && (c.asks.secure || w.addresses.Secures(s)) {
		text = fmt.Sprintf("annotation %s has no effect, because the port accepts the pod's own addresses only: "+
			"set portSecurity of subnet %s to Requested, and remove annotation %s", kubeovnv1.AnnotationLayer2Forward.Key(), s.Name, kubeovnv1.AnnotationPortSecurity.Key())
	}
	return reasonNotSupported, text
}

// ignoredOfMirror reports on a new mirror pod which of its requests are ignored.
func (w *warner) ignoredOfMirror(ctx context.Context, c *connection) (reason, text string) {
	if !c.asks.Mirror {
		return "", ""
	}
	var ignored []string
	for _, a := range kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleRequest, kubeovnv1.RoleClaim) {
		if c.pod.Annotations[a.Key()] != "" {
			ignored = append(ignored, "annotation "+a.Key())
		}
	}
	for _, key := range kubeovnv1.BandwidthKeys {
		if c.pod.Annotations[key] != "" {
			ignored = append(ignored, "annotation "+key)
		}
	}
	ns := &corev1.Namespace{}
	if err := w.client.Get(ctx, client.ObjectKey{Name: c.pod.Namespace}, ns, client.UnsafeDisableDeepCopy); err == nil {
		if subnets, err := w.namespaces.Subnets(ctx, ns); err == nil && !slices.Contains(subnets, kubeovnv1.DefaultSubnet) {
			ignored = append(ignored, "the subnets of its namespace")
		}
	}
	if len(ignored) > 0 {
		text = "a node created this pod, so it gets an address of subnet " + kubeovnv1.DefaultSubnet + " and is no peer of policies. Ignored: " +
			strings.Join(ignored, ", ") + ". Use a DaemonSet instead of a static pod"
	}
	return reasonMirror, text
}

// unsharedVips warns of Vips that the pod names and cannot share.
func (w *warner) unsharedVips(ctx context.Context, c *connection) (reason, text string) {
	key := kubeovnv1.AnnotationAAPs.Key()
	switch names := c.pod.Annotations[key]; {
	case names == "":
		return "", ""
	case kubeovnv1.TooLong(names):
		return reasonVip, fmt.Sprintf("annotation %s names more than %d Vips: the pod shares none of them", key, kubeovnv1.MaxListEntries)
	}
	var wrong []string
	for _, name := range kubeovnv1.ParseAAPs(c.pod.Annotations) {
		vip, why, err := w.addresses.Vip(ctx, c.pod.Namespace, name)
		switch {
		case err != nil:
			continue
		case why == "" && vip.Spec.Type != "":
			why = "is of type " + vip.Spec.Type
		case why == "" && address.VipSubnet(vip) != c.allocation.Subnet:
			why = fmt.Sprintf("is of subnet %s, and the pod of %s", address.VipSubnet(vip), c.allocation.Subnet)
		}
		if why != "" {
			wrong = append(wrong, "Vip "+name+" "+why)
		}
	}
	if len(wrong) > 0 { // one event: a second one with the same reason would be dropped
		text = fmt.Sprintf("of annotation %s: %s", key, strings.Join(wrong, "; "))
	}
	return reasonVip, text
}

// unsharedAddresses warns of addresses in port_vips that the pod does not share.
func (w *warner) unsharedAddresses(_ context.Context, c *connection) (reason, text string) {
	if _, others := splitShared(c.subnet, c.asks.Vips); len(others) > 0 {
		text = fmt.Sprintf("of annotation %s: %s is not among the vips of subnet %s: add it there, or remove it from the annotation",
			kubeovnv1.AnnotationPortVips.Key(), ipfamily.Join(others), c.subnet.Name)
	}
	return reasonAddress, text
}

// groupsWithoutEffect warns of security groups that the pod is not in, or of too many of them. They let nothing through.
func (w *warner) groupsWithoutEffect(_ context.Context, c *connection) (reason, text string) {
	switch denied, missing := c.groups.Denied, c.groups.Missing; {
	case kubeovnv1.TooLong(c.pod.Annotations[keyGroups]):
		return reasonTooManyGroups, fmt.Sprintf("annotation %s names more than %d groups: nothing passes. Name fewer", keyGroups, kubeovnv1.MaxListEntries)
	case len(denied) > 0:
		return reasonDeniedGroup, fmt.Sprintf("annotation %s names %s, which does not list namespace %s: nothing passes by it. Add the namespace to allowedNamespaces of the SecurityGroup",
			keyGroups, strings.Join(denied, ", "), c.pod.Namespace)
	case len(missing) > 0:
		return reasonNoGroup, fmt.Sprintf("annotation %s names %s, which does not exist: nothing passes by it. Create the SecurityGroup, or name another one", keyGroups, strings.Join(missing, ", "))
	}
	return "", ""
}

// adjustedLimits warns of limits that differ from the pod's requests.
func (w *warner) adjustedLimits(_ context.Context, c *connection) (reason, text string) {
	return reasonLimitAdjusted, strings.Join(c.adjusted, "; ")
}
