// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// vpcOf returns the VPC whose pods reach a Service: the VPC that the user names, or the VPC of the endpoints, which is recorded in an annotation
// for agents and for times without endpoints. A Service whose endpoints are not pods belongs to the default VPC.
func (r *Reconciler) vpcOf(ctx context.Context, s *corev1.Service, of []*discoveryv1.EndpointSlice) (string, error) {
	annotations := map[string]any{}
	vpc := s.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]
	if vpc == "" {
		vpc = cmp.Or(s.Annotations[kubeovnv1.AnnotationVpc.Key()], kubeovnv1.DefaultVpc)
		found, err := lookup.VpcOfEndpoints(ctx, r.Client, r.Live, of)
		if err != nil {
			return vpc, err
		}
		if found != "" && found != vpc {
			vpc, annotations[kubeovnv1.AnnotationVpc.Key()] = found, found
		}
	}
	return vpc, r.mark(ctx, s, annotations, proxyMark(s, vpc))
}

// ofVpc maps a custom VPC to the Services whose annotations name it.
func (r *Reconciler) ofVpc(ctx context.Context, vpc client.Object) []reconcile.Request {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.MatchingFields{indexVpc: vpc.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list the Services of a VPC", "vpc", vpc.GetName())
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// vpcView is the part of a VPC that Services depend on.
type vpcView struct {
	k8s.VpcView

	external string
}

func viewVpc(v *kubeovnv1.Vpc) vpcView { return vpcView{k8s.ViewVpc(v), lookup.ViewExternal(v)} }

// missingVpc returns the VPC that the user of a Service names if it does not exist, or "". It reads the API server,
// because the cache may lag. The client refuses to request a name that no object can have.
func (r *Reconciler) missingVpc(ctx context.Context, s *corev1.Service) (string, error) {
	name := s.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]
	if name == "" || len(kubeovnv1.CheckRequests(kubeovnv1.OnService, s.Annotations)) > 0 {
		return name, nil
	}
	for _, reader := range []client.Reader{r.Client, r.Live} {
		err := reader.Get(ctx, client.ObjectKey{Name: name}, &kubeovnv1.Vpc{}, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("get Vpc %s of Service %s: %w", name, client.ObjectKeyFromObject(s), err)
		}
		if err == nil {
			return "", nil
		}
	}
	return name, nil
}

// proxyMark is the change of labels that keeps kube-proxy from a Service whose endpoints' addresses mean something else on nodes, or that
// gives it back. A label of someone else stays.
func proxyMark(s *corev1.Service, vpc string) map[string]any {
	name, labelled := s.Labels[translate.LabelProxyName]
	switch {
	case vpc != kubeovnv1.DefaultVpc && !labelled && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone:
		return map[string]any{translate.LabelProxyName: translate.ProxyOfVPCs}
	case vpc == kubeovnv1.DefaultVpc && name == translate.ProxyOfVPCs:
		return map[string]any{translate.LabelProxyName: nil}
	}
	return nil
}

// mark writes annotations and labels on a Service, if there are any. In a merge patch no labels at all (null) would be the end of all.
func (r *Reconciler) mark(ctx context.Context, s *corev1.Service, annotations, labels map[string]any) error {
	metadata := map[string]any{"uid": s.UID}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if len(metadata) == 1 {
		return nil
	}
	change, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("write the marks of Service %s: %w", client.ObjectKeyFromObject(s), err)
	}
	patch := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}}
	if err := r.Client.Patch(ctx, patch, client.RawPatch(types.MergePatchType, change)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the VPC of Service %s: %w", client.ObjectKeyFromObject(s), err)
	}
	return nil
}
