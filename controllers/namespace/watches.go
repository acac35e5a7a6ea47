// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

const (
	// indexSubnet finds namespaces by the subnets in their annotation, and by unserved if they have none.
	indexSubnet = "namespace.subnet"
	unserved    = ""
)

func subnetsOf(o client.Object) []string {
	return strings.Split(o.GetAnnotations()[kubeovnv1.AnnotationLogicalSwitch.Key()], ",")
}

// bySubnet returns the namespaces that the applied spec of the subnet names or selects, the namespaces with the subnet in their annotation, and the namespaces
// without a subnet.
func (r *Reconciler) bySubnet(ctx context.Context, o client.Object) []reconcile.Request {
	s := k8s.Applied(o.(*kubeovnv1.Subnet))
	requests := slices.Concat(k8s.Requests(s.Spec.Namespaces...),
		r.listed(ctx, client.MatchingFields{indexSubnet: s.Name}), r.listed(ctx, client.MatchingFields{indexSubnet: unserved}))
	for i := range s.Spec.NamespaceSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s.Spec.NamespaceSelectors[i])
		if err != nil {
			continue // the subnet's condition reports it
		}
		requests = append(requests, r.listed(ctx, client.MatchingLabelsSelector{Selector: selector})...)
	}
	return requests
}

// byVpc returns the namespaces that the VPC lists. For the default VPC, whose default subnet may serve any namespace, it returns all.
func (r *Reconciler) byVpc(ctx context.Context, o client.Object) []reconcile.Request {
	vpc := k8s.AppliedVpc(o.(*kubeovnv1.Vpc))
	if vpc.Name != kubeovnv1.DefaultVpc {
		return k8s.Requests(vpc.Spec.Namespaces...)
	}
	return append(k8s.Requests(vpc.Spec.Namespaces...), r.listed(ctx)...)
}

// byPool returns the namespaces of the applied spec of an IPPool.
func byPool(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(k8s.AppliedPool(o.(*kubeovnv1.IPPool)).Spec.Namespaces...)
}

func (r *Reconciler) listed(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &corev1.NamespaceList{}, options...)
}
