// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
)

// eventBehaviourLost is the reason of the event on an object that the operator cannot change.
const eventBehaviourLost = "BehaviourNotKept"

// eventBehaviourKept is the reason of the event on an object that the operator has written the behaviour of earlier versions into.
const eventBehaviourKept = "BehaviourKept"

// strictMark is the name of the ConfigMap that records that the defaults of v1alpha1.Tenancy apply. It remains after the
// OVNCluster is deleted, like the network resources: when the OVNCluster is created again, strict objects must stay
// strict.
const strictMark = "kiln-strict"

// keepTenancy writes the previous permissions into the objects that earlier versions of Kiln, or Kube-OVN, serve: any
// namespace can use them, custom VPCs reach the cluster's Services, and pods can send from any address. Objects without a
// status have not been served; the defaults of v1alpha1.Tenancy apply to them. keepTenancy ends permanently when a
// kube-ovn-controller runs that knows these defaults. Until then each pass runs it, because the earlier version also
// serves objects that are created while the upgrade waits. In a new installation it runs once.
func (r *Reconciler) keepTenancy(ctx context.Context, p *pass) error {
	if p.cluster.Status.StrictSince != nil {
		return nil
	}
	mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: strictMark}}
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(mark), mark)
	switch {
	case err == nil:
		p.cluster.Status.StrictSince = &mark.CreationTimestamp
		return nil
	case !apierrors.IsNotFound(err):
		return orForbidden(fmt.Errorf("get ConfigMap %s: %w", strictMark, err))
	case r.knowsTenancy(p.podsOf(render.ControllerName)):
		return r.markStrict(ctx, p, mark)
	}
	if err := r.keepAll(ctx); err != nil {
		return orForbidden(err)
	}
	if p.cluster.Status.Northbound.ClusterID == "" { // a new installation: no earlier version of Kiln serves objects
		return r.markStrict(ctx, p, mark)
	}
	return nil
}

// markStrict records that the strict defaults apply.
func (r *Reconciler) markStrict(ctx context.Context, p *pass, mark *corev1.ConfigMap) error {
	mark.Annotations = map[string]string{"kubeovn.io/description": "The defaults of spec.tenancy of the OVNCluster apply. Keep this object."}
	if err := r.Create(ctx, mark); err != nil {
		return orForbidden(fmt.Errorf("create ConfigMap %s: %w", strictMark, err))
	}
	p.cluster.Status.StrictSince = &mark.CreationTimestamp
	return nil
}

// keepAll writes the previous permissions into all objects that are served.
func (r *Reconciler) keepAll(ctx context.Context) error {
	var vpcs kubeovnv1.VpcList
	var subnets kubeovnv1.SubnetList
	var pools kubeovnv1.IPPoolList
	for _, list := range []client.ObjectList{&vpcs, &subnets, &pools} {
		if err := r.APIReader.List(ctx, list); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	for _, keep := range []func() error{
		func() error { return keepEach(ctx, r, vpcs.Items, keepVpc) },
		func() error { return keepEach(ctx, r, subnets.Items, keepSubnet) },
		func() error { return keepEach(ctx, r, pools.Items, keepPool) },
	} {
		if err := keep(); err != nil {
			return err
		}
	}
	return nil
}

// knowsTenancy reports whether a controller knows v1alpha1.Tenancy: its pod runs the operator's image, or has a condition that earlier versions do
// not write. The image is known before the controller serves its first object.
func (r *Reconciler) knowsTenancy(controllers []*corev1.Pod) bool {
	return slices.ContainsFunc(controllers, func(pod *corev1.Pod) bool {
		return pod.Spec.Containers[0].Image == r.Image || slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.PodConditionNorthbound })
	})
}

// orForbidden returns err, or a halt if the operator's role is from an earlier version and forbids the request.
func orForbidden(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return &halt{
		reason: "KeepingBehaviour", degraded: true, retry: err,
		message: "apply the manifests in config/rbac: the operator may not write the previous permissions into existing VPCs, subnets and IPPools: " + err.Error(),
	}
}

// keepEach calls complete for each object, which fills empty fields and returns them as text, and writes the objects with filled fields. If
// the API server's answer lacks these fields, its definition of the kind is from an earlier version.
func keepEach[T any, O interface {
	*T
	client.Object
}](ctx context.Context, r *Reconciler, items []T, complete func(O) []string) error {
	for i := range items {
		object := O(&items[i])
		before, _ := object.DeepCopyObject().(client.Object)
		fields := complete(object)
		if len(fields) == 0 {
			continue
		}
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		err := r.Patch(ctx, object, patch)
		if apierrors.IsInvalid(err) { // another field of the object is invalid by now
			k8s.Warn(r.Recorder, before, eventBehaviourLost, "this object cannot be changed, and the strict defaults will apply to it: "+err.Error())
			continue
		}
		if err != nil {
			return fmt.Errorf("write %s of %T %s: %w", strings.Join(fields, ", "), object, object.GetName(), err)
		}
		if missing := complete(object); len(missing) > 0 {
			return &halt{
				reason: "KeepingBehaviour", degraded: true, retry: errOldDefinition,
				message: fmt.Sprintf("apply the manifests in config/crd: the API server does not store %s of %T", strings.Join(missing, ", "), object),
			}
		}
		r.Recorder.Eventf(object, nil, corev1.EventTypeNormal, eventBehaviourKept, "Upgrade", "%s",
			"this object keeps its previous behaviour: "+strings.Join(fields, "; ")+". Remove these fields to have the defaults of the OVNCluster's spec.tenancy")
	}
	return nil
}

var errOldDefinition = errors.New("a CustomResourceDefinition is from an earlier version")

func keepVpc(vpc *kubeovnv1.Vpc) (fields []string) {
	if vpc.Name == kubeovnv1.DefaultVpc || equality.Semantic.DeepEqual(vpc.Status, kubeovnv1.VpcStatus{}) {
		return nil
	}
	if vpc.Spec.ClusterAccess == "" {
		vpc.Spec.ClusterAccess = kubeovnv1.ClusterAccessServices
		fields = append(fields, "spec.clusterAccess is Services")
	}
	return append(fields, allowAll(&vpc.Spec.AllowedNamespaces)...)
}

func keepSubnet(subnet *kubeovnv1.Subnet) (fields []string) {
	if subnet.Name == kubeovnv1.JoinSubnet || equality.Semantic.DeepEqual(subnet.Status, kubeovnv1.SubnetStatus{}) {
		return nil
	}
	if subnet.Spec.PortSecurity == "" {
		subnet.Spec.PortSecurity = kubeovnv1.PortSecurityRequested
		fields = append(fields, "spec.portSecurity is Requested")
	}
	if subnet.Spec.Private {
		fields = append(fields, allowAll(&subnet.Spec.AllowedNamespaces)...)
	}
	return fields
}

func keepPool(pool *kubeovnv1.IPPool) []string {
	if len(pool.Spec.Namespaces) == 0 || equality.Semantic.DeepEqual(pool.Status, kubeovnv1.IPPoolStatus{}) {
		return nil
	}
	return allowAll(&pool.Spec.AllowedNamespaces)
}

// allowAll allows every namespace, unless the list has entries already.
func allowAll(list *[]kubeovnv1.AllowedNamespace) []string {
	if len(*list) > 0 {
		return nil
	}
	*list = []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}
	return []string{"spec.allowedNamespaces is *"}
}
