// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// OwnerLabel is the label with which OLM marks the objects of a ClusterServiceVersion.
const OwnerLabel = "olm.owner"

// Target is where and how a user of OLM installs a bundle.
type Target struct {
	// Namespace is the namespace of the Subscription.
	Namespace string
	// AllNamespaces is true with an OperatorGroup without target namespaces. Otherwise the OperatorGroup's target is Namespace.
	AllNamespaces bool
	// Env is spec.config.env of the Subscription.
	Env []corev1.EnvVar
}

// Objects returns the objects that OLM creates from a bundle, in its order: objects of the bundle, then the rights and the Deployments of the
// install strategy. They are without the owner references, which need the object ClusterServiceVersion.
func Objects(bundle *manifests.Bundle, target Target) ([]*unstructured.Unstructured, error) {
	objects := []*unstructured.Unstructured{}
	for _, o := range bundle.Objects {
		if o.GetKind() != "ClusterServiceVersion" {
			objects = append(objects, o.DeepCopy())
		}
	}
	typed := rights(bundle.CSV, target)
	for _, deployment := range bundle.CSV.Spec.InstallStrategy.StrategySpec.DeploymentSpecs {
		typed = append(typed, workload(bundle.CSV, deployment, target))
	}
	for _, o := range typed {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", o, err)
		}
		delete(content, "status")
		removeNulls(content)
		object := &unstructured.Unstructured{Object: content}
		object.SetLabels(with(object.GetLabels(), map[string]string{
			OwnerLabel: bundle.CSV.Name, "olm.owner.kind": "ClusterServiceVersion", "olm.owner.namespace": target.Namespace,
		}))
		objects = append(objects, object)
	}
	return objects, nil
}

// rights returns the ServiceAccounts and roles of the install strategy. With an OperatorGroup for all namespaces, OLM makes ClusterRoles of all
// permissions.
func rights(csv *v1alpha1.ClusterServiceVersion, target Target) (objects []any) {
	strategy := csv.Spec.InstallStrategy.StrategySpec
	cluster, namespaced := slices.Clone(strategy.ClusterPermissions), strategy.Permissions
	if target.AllNamespaces {
		cluster, namespaced = append(cluster, namespaced...), nil
	}
	accounts := map[string]bool{}
	subject := func(account string) []rbacv1.Subject {
		if !accounts[account] {
			accounts[account] = true
			objects = append(objects, &corev1.ServiceAccount{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Namespace: target.Namespace, Name: account},
			})
		}
		return []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: target.Namespace, Name: account}}
	}
	meta := func(kind, namespace string, i int) (metav1.TypeMeta, metav1.ObjectMeta) { // OLM's names end with a hash
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind},
			metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", csv.Name, i)}
	}
	for i, p := range cluster {
		role, binding := &rbacv1.ClusterRole{Rules: p.Rules}, &rbacv1.ClusterRoleBinding{Subjects: subject(p.ServiceAccountName)}
		role.TypeMeta, role.ObjectMeta = meta("ClusterRole", "", i)
		binding.TypeMeta, binding.ObjectMeta = meta("ClusterRoleBinding", "", i)
		binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}
		objects = append(objects, role, binding)
	}
	for i, p := range namespaced {
		role, binding := &rbacv1.Role{Rules: p.Rules}, &rbacv1.RoleBinding{Subjects: subject(p.ServiceAccountName)}
		role.TypeMeta, role.ObjectMeta = meta("Role", target.Namespace, i)
		binding.TypeMeta, binding.ObjectMeta = meta("RoleBinding", target.Namespace, i)
		binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}
		objects = append(objects, role, binding)
	}
	return objects
}

// workload returns a Deployment of the install strategy with what OLM adds: the annotations of the ClusterServiceVersion and of the OperatorGroup,
// a limit of old ReplicaSets, and environment variables.
func workload(csv *v1alpha1.ClusterServiceVersion, spec v1alpha1.StrategyDeploymentSpec, target Target) *appsv1.Deployment {
	deployment := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: target.Namespace, Name: spec.Name, Labels: spec.Label},
		Spec:       *spec.Spec.DeepCopy(),
	}
	deployment.Spec.RevisionHistoryLimit = new(int32(1))
	group := map[string]string{"olm.operatorGroup": "kiln", "olm.operatorNamespace": target.Namespace, "olm.targetNamespaces": target.Namespace}
	if target.AllNamespaces {
		group["olm.targetNamespaces"] = ""
	}
	template := &deployment.Spec.Template
	template.Annotations = with(template.Annotations, csv.Annotations, group)
	for i := range template.Spec.Containers {
		c := &template.Spec.Containers[i]
		c.Env = append(append(c.Env, target.Env...), corev1.EnvVar{Name: "OPERATOR_CONDITION_NAME", Value: csv.Name})
	}
	return deployment
}

// with returns the union of maps, of which the last one with a key decides.
func with(all ...map[string]string) map[string]string {
	union := map[string]string{}
	for _, m := range all {
		maps.Copy(union, m)
	}
	return union
}
