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
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/version"
)

// eventBehaviourLost is the reason of the event on an object that the operator cannot change.
const eventBehaviourLost = "BehaviourNotKept"

// eventBehaviourKept is the reason of the event on an object that the operator has written the behaviour of earlier versions into.
const eventBehaviourKept = "BehaviourKept"

// strictMark is the name of the ConfigMap that records that the defaults of v1alpha1.Tenancy apply to VPCs, subnets and IPPools; strictGroupsMark the one for security groups and
// Vips, whose lists of namespaces are newer. They remain after the OVNCluster is deleted, like the network resources: when the OVNCluster is created again, strict objects must
// stay strict.
const (
	strictMark       = "kiln-strict"
	strictGroupsMark = "kiln-strict-groups"
)

// strictStep is a set of kinds to which the defaults of v1alpha1.Tenancy began to apply with one version.
type strictStep struct {
	mark  string
	since func(*v1alpha1.OVNClusterStatus) **metav1.Time
	// known reports whether a kube-ovn-controller runs that applies the defaults to these kinds.
	known func(t tenancyKeeper, controllers []*corev1.Pod) bool
	// keep writes the previous permissions into all objects that are served.
	keep func(tenancyKeeper, context.Context) error
}

var strictSteps = []strictStep{
	{strictMark, func(s *v1alpha1.OVNClusterStatus) **metav1.Time { return &s.StrictSince }, tenancyKeeper.isKnown, tenancyKeeper.keepNetworks},
	{strictGroupsMark, func(s *v1alpha1.OVNClusterStatus) **metav1.Time { return &s.StrictGroupsSince }, tenancyKeeper.runsOwnVersion, tenancyKeeper.keepGroups},
}

// keepTenancy writes the previous permissions into the objects that earlier versions of Kiln, or Kube-OVN, serve: any
// namespace can use them, custom VPCs reach the cluster's Services, and pods can send from any address. Objects without a
// status have not been served; the defaults of v1alpha1.Tenancy apply to them. Each step of keepTenancy ends permanently when a
// kube-ovn-controller runs that knows its defaults. Until then each pass runs it, because the earlier version also
// serves objects that are created while the upgrade waits. In a new installation it runs once.
func (r *Reconciler) keepTenancy(ctx context.Context, p *pass) error {
	t := tenancyKeeper{Client: r, APIReader: r.APIReader, recorder: r.Recorder, namespace: r.Namespace, image: r.Image, versions: r.versions}
	for i := range strictSteps {
		if err := t.keep(ctx, &p.cluster.Status, p.PodsOf(render.ControllerName), &strictSteps[i]); err != nil {
			return err
		}
	}
	return nil
}

// tenancyKeeper writes permissions into objects of earlier versions.
type tenancyKeeper struct {
	client.Client
	// APIReader bypasses the cache.
	APIReader client.Reader
	recorder  events.EventRecorder
	namespace string
	// image of the operator.
	image    string
	versions *status.Versions
}

// keep runs one step, and records in the status when it has ended. controllers are the pods of kube-ovn-controller.
func (t tenancyKeeper) keep(ctx context.Context, record *v1alpha1.OVNClusterStatus, controllers []*corev1.Pod, step *strictStep) error {
	since := step.since(record)
	if *since != nil {
		return nil
	}
	mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: step.mark}}
	err := t.APIReader.Get(ctx, client.ObjectKeyFromObject(mark), mark)
	switch {
	case err == nil:
		*since = &mark.CreationTimestamp
		return nil
	case !apierrors.IsNotFound(err):
		return orForbidden(fmt.Errorf("get ConfigMap %s: %w", step.mark, err))
	case step.known(t, controllers):
		return t.markStrict(ctx, mark, since)
	}
	if err := step.keep(t, ctx); err != nil {
		return orForbidden(err)
	}
	if record.Northbound.ClusterID == "" { // a new installation: no earlier version of Kiln serves objects
		return t.markStrict(ctx, mark, since)
	}
	return nil
}

// markStrict records that strict defaults apply.
func (t tenancyKeeper) markStrict(ctx context.Context, mark *corev1.ConfigMap, since **metav1.Time) error {
	mark.Annotations = map[string]string{"kubeovn.io/description": "The defaults of spec.tenancy of the OVNCluster apply. Keep this object."}
	if err := t.Create(ctx, mark); err != nil {
		return orForbidden(fmt.Errorf("create ConfigMap %s: %w", mark.Name, err))
	}
	*since = &mark.CreationTimestamp
	return nil
}

// keepNetworks writes the previous permissions into VPCs, subnets and IPPools.
func (t tenancyKeeper) keepNetworks(ctx context.Context) error {
	var vpcs kubeovnv1.VpcList
	var subnets kubeovnv1.SubnetList
	var pools kubeovnv1.IPPoolList
	if err := t.listLive(ctx, &vpcs, &subnets, &pools); err != nil {
		return err
	}
	if err := keepEach(ctx, t, vpcs.Items, keepVpc); err != nil {
		return err
	}
	if err := keepEach(ctx, t, subnets.Items, keepSubnet); err != nil {
		return err
	}
	return keepEach(ctx, t, pools.Items, keepPool)
}

// keepGroups writes the previous permissions into security groups and Vips.
func (t tenancyKeeper) keepGroups(ctx context.Context) error {
	var groups kubeovnv1.SecurityGroupList
	var vips kubeovnv1.VipList
	if err := t.listLive(ctx, &groups, &vips); err != nil {
		return err
	}
	if err := keepEach(ctx, t, groups.Items, keepGroup); err != nil {
		return err
	}
	return keepEach(ctx, t, vips.Items, keepVip)
}

func (t tenancyKeeper) listLive(ctx context.Context, lists ...client.ObjectList) error {
	for _, list := range lists {
		if err := t.APIReader.List(ctx, list); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	return nil
}

// isKnown reports whether a controller knows v1alpha1.Tenancy: its pod runs the operator's image, or has a condition that earlier versions do
// not write. The image is known before the controller serves its first object.
func (t tenancyKeeper) isKnown(controllers []*corev1.Pod) bool {
	return t.runsOwnImage(controllers) || slices.ContainsFunc(controllers, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.PodConditionNorthbound })
	})
}

// runsOwnImage reports whether a controller runs the operator's image.
func (t tenancyKeeper) runsOwnImage(controllers []*corev1.Pod) bool {
	return slices.ContainsFunc(controllers, func(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Image == t.image })
}

// runsOwnVersion reports whether a controller runs the operator's image, or has reported the operator's version: spec.image can name the same image in another
// registry, or by its digest. Images of a working tree have no version of their own.
func (t tenancyKeeper) runsOwnVersion(controllers []*corev1.Pod) bool {
	return t.runsOwnImage(controllers) || version.Kiln != version.Development && slices.ContainsFunc(controllers, func(pod *corev1.Pod) bool {
		return t.versions.Known(pod).Kiln == version.Kiln
	})
}

// orForbidden returns err, or a halt if the operator's role is from an earlier version and forbids the request.
func orForbidden(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return &status.Halt{
		Reason: "KeepingBehaviour", Degraded: true, Retry: err,
		Message: "apply the manifests in config/rbac: the operator may not write the previous permissions into existing VPCs, subnets, IPPools, security groups and Vips: " + err.Error(),
	}
}

// keepEach calls complete for each object, which fills empty fields and returns them as text, and writes the objects with filled fields. If
// the API server's answer lacks these fields, its definition of the kind is from an earlier version.
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
				Reason: "KeepingBehaviour", Degraded: true, Retry: errOldDefinition,
				Message: fmt.Sprintf("apply the manifests in config/crd: the API server does not store %s of %T", strings.Join(missing, ", "), object),
			}
		}
		t.recorder.Eventf(object, nil, corev1.EventTypeNormal, eventBehaviourKept, "Upgrade", "%s",
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

func keepGroup(group *kubeovnv1.SecurityGroup) []string {
	if equality.Semantic.DeepEqual(group.Status, kubeovnv1.SecurityGroupStatus{}) {
		return nil
	}
	return allowAll(&group.Spec.AllowedNamespaces)
}

// keepVip skips the Vips of one namespace, and those that no pod may use.
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
