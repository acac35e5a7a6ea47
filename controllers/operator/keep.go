// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
)

// eventBehaviourLost is the reason of the event on an object that the operator cannot change.
const eventBehaviourLost = "BehaviourNotKept"

// eventBehaviourKept is the reason of the event on an object that the operator has written the behaviour of Kube-OVN into.
const eventBehaviourKept = "BehaviourKept"

// strictMark is the name of the ConfigMap that records that the defaults of v1alpha1.Tenancy apply. It remains after the OVNCluster is deleted, like the
// network resources: when the OVNCluster is created again, strict objects must stay strict.
const strictMark = "kiln-strict"

// tenancyKeeper writes permissions into objects of Kube-OVN.
type tenancyKeeper struct {
	client.Client
	// APIReader bypasses the cache.
	APIReader client.Reader
	recorder  events.EventRecorder
	namespace string
}

// keepTenancy writes the permissions that Kube-OVN gives into the objects that it has served: any namespace can use them, custom VPCs reach the cluster's
// Services, and pods can send from any address. Objects without a status have not been served; the defaults of v1alpha1.Tenancy apply to them. It is done
// once, before the first component of a new installation runs.
func (r *Reconciler) keepTenancy(ctx context.Context, p *pass) error {
	since := &p.cluster.Status.StrictSince
	if *since != nil {
		return nil
	}
	t := tenancyKeeper{Client: r, APIReader: r.APIReader, recorder: r.Recorder, namespace: r.Namespace}
	mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: strictMark}}
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(mark), mark)
	if apierrors.IsNotFound(err) {
		if err = nil; p.cluster.Status.Northbound.ClusterID == "" { // otherwise Kiln has served the objects, and the mark was lost
			err = t.keep(ctx)
		}
		if err == nil {
			mark.Annotations = map[string]string{"kubeovn.io/description": "The defaults of spec.tenancy of the OVNCluster apply. Keep this object."}
			err = r.Create(ctx, mark)
		}
	}
	if err != nil {
		return orForbidden(err)
	}
	*since = &mark.CreationTimestamp
	return nil
}

// keep writes the permissions into all objects.
func (t tenancyKeeper) keep(ctx context.Context) error {
	var vpcs kubeovnv1.VpcList
	var subnets kubeovnv1.SubnetList
	var pools kubeovnv1.IPPoolList
	var groups kubeovnv1.SecurityGroupList
	var vips kubeovnv1.VipList
	for _, list := range []client.ObjectList{&vpcs, &subnets, &pools, &groups, &vips} {
		if err := t.APIReader.List(ctx, list); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	external := map[string]bool{}
	for i := range vpcs.Items {
		for _, subnet := range vpcs.Items[i].Spec.ExternalSubnets() {
			external[subnet] = true
		}
	}
	return cmp.Or(
		keepEach(ctx, t, vpcs.Items, keepVpc), keepEach(ctx, t, subnets.Items, keepSubnet(external)), keepEach(ctx, t, pools.Items, keepPool),
		keepEach(ctx, t, groups.Items, keepGroup), keepEach(ctx, t, vips.Items, keepVip))
}

// orForbidden returns err, or a halt if the operator's role forbids the request.
func orForbidden(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return &status.Halt{
		Reason: "KeepingBehaviour", Degraded: true, Retry: err,
		Message: "apply the manifests in config/rbac: the operator may not write the permissions of Kube-OVN into existing VPCs, subnets, IPPools, security groups and Vips: " + err.Error(),
	}
}

// keepEach calls complete for each object, which fills empty fields and returns them as text, and writes the objects with filled fields. If
// the API server's answer lacks these fields, its definition of the kind is Kube-OVN's or outdated.
func keepEach[T any, O interface {
	*T
	client.Object
}](ctx context.Context, t tenancyKeeper, items []T, complete func(O) []string) error {
	for i := range items {
		object := O(&items[i])
		before, _ := object.DeepCopyObject().(client.Object)
		fields := complete(object)
		if len(fields) == 0 {
			continue
		}
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		err := t.Patch(ctx, object, patch)
		if apierrors.IsInvalid(err) { // another field of the object is invalid by now
			k8s.Warn(t.recorder, before, eventBehaviourLost, "this object cannot be changed, and the strict defaults will apply to it: "+err.Error())
			continue
		}
		if err != nil {
			return fmt.Errorf("write %s of %T %s: %w", strings.Join(fields, ", "), object, object.GetName(), err)
		}
		if missing := complete(object); len(missing) > 0 {
			return &status.Halt{
				Reason: "KeepingBehaviour", Degraded: true, Retry: errOtherDefinition,
				Message: fmt.Sprintf("apply the manifests in config/crd: the API server does not store %s of %T", strings.Join(missing, ", "), object),
			}
		}
		t.recorder.Eventf(object, nil, corev1.EventTypeNormal, eventBehaviourKept, "Upgrade", "%s",
			"this object keeps its previous behaviour: "+strings.Join(fields, "; ")+". Remove these fields to have the defaults of the OVNCluster's spec.tenancy")
	}
	return nil
}

var errOtherDefinition = errors.New("a CustomResourceDefinition is not the one of this version")

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

// keepSubnet returns the function for subnets. external are the subnets that Vpcs name as external ones.
func keepSubnet(external map[string]bool) func(*kubeovnv1.Subnet) []string {
	return func(subnet *kubeovnv1.Subnet) (fields []string) {
		if subnet.Name == kubeovnv1.JoinSubnet || equality.Semantic.DeepEqual(subnet.Status, kubeovnv1.SubnetStatus{}) {
			return nil
		}
		if subnet.Spec.PortSecurity == "" {
			subnet.Spec.PortSecurity = kubeovnv1.PortSecurityRequested
			fields = append(fields, "spec.portSecurity is Requested")
		}
		if subnet.Spec.Private || external[subnet.Name] && subnet.Spec.PhysicalGateway() {
			fields = append(fields, allowAll(&subnet.Spec.AllowedNamespaces)...)
		}
		return fields
	}
}

func keepPool(pool *kubeovnv1.IPPool) []string {
	if len(pool.Spec.Namespaces) == 0 || equality.Semantic.DeepEqual(pool.Status, kubeovnv1.IPPoolStatus{}) {
		return nil
	}
	return allowAll(&pool.Spec.AllowedNamespaces)
}

func keepGroup(group *kubeovnv1.SecurityGroup) []string {
	if equality.Semantic.DeepEqual(group.Status, kubeovnv1.SecurityGroupStatus{}) {
		return nil
	}
	return allowAll(&group.Spec.AllowedNamespaces)
}

// keepVip skips the Vips of one namespace, and Vips that no pod may use.
func keepVip(vip *kubeovnv1.Vip) []string {
	if vip.Spec.Namespace != "" || vip.Spec.Type != "" || equality.Semantic.DeepEqual(vip.Status, kubeovnv1.VipStatus{}) {
		return nil
	}
	return allowAll(&vip.Spec.AllowedNamespaces)
}

// allowAll allows every namespace, unless the list has entries already.
func allowAll(list *[]kubeovnv1.AllowedNamespace) []string {
	if len(*list) > 0 {
		return nil
	}
	*list = []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}
	return []string{"spec.allowedNamespaces is *"}
}
