// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// ControllerObjects returns the Deployment of kube-ovn-controller: one leader, the other replicas on standby.
func ControllerObjects(c Config) []Object {
	template := c.template(program{
		app:           ControllerName,
		component:     ControllerName,
		account:       ControllerName,
		priorityClass: clusterCritical,
		args: []string{
			"controller",
			"--pod-cidrs=" + strings.Join(c.Spec.Network.PodCIDRs, ","),
			"--join-cidrs=" + strings.Join(c.Spec.Network.JoinCIDRs, ","),
			"--service-cidrs=" + strings.Join(c.Spec.Network.ServiceCIDRs, ","),
			"--tls-dir=" + tlsDirectory,
		},
		health:      controllerHealthPort,
		resources:   firstSet(c.Spec.Controller.Resources, requests("200m", "256Mi")),
		security:    confined(),
		grace:       30,
		tolerations: Tolerations(c.Spec.Controller.Placement),
		mounts:      []mount{tlsMount(ControllerSecret)},
	})
	// These are environment variables because earlier versions, to which spec.image can roll back, exit on unknown flags.
	container := &template.Spec.Containers[0]
	container.Env = append(container.Env,
		corev1.EnvVar{Name: "KILN_MEMBERSHIP", Value: string(c.Spec.Tenancy.Membership)},
		corev1.EnvVar{Name: "KILN_CLUSTER_ACCESS", Value: string(c.Spec.Tenancy.ClusterAccess)},
		corev1.EnvVar{Name: "KILN_PORT_SECURITY", Value: string(c.Spec.Tenancy.PortSecurity)})
	for _, v := range []struct{ name, value, usual string }{
		{"KILN_POD_ACCESS", string(c.Spec.Services.PodAccess), string(v1alpha1.PodAccessOVN)},
		{"KILN_POD_GATEWAYS", strings.Join(c.Spec.Network.PodGateways, ","), ""},
		{"KILN_POD_VLAN", c.Spec.Network.PodVlan, ""},
		{"KILN_EXCLUDE_IPS", strings.Join(c.Spec.Network.ExcludeIPs, ","), ""},
		{"KILN_NETWORK_POLICIES", string(c.Spec.Policies.NetworkPolicies), string(v1alpha1.NetworkPoliciesEnforced)},
		{"KILN_CONTROL_PLANE_PROTECTION", protection(c.Spec.Network.ControlPlaneProtection), ""},
	} {
		if v.value != "" && v.value != v.usual { // clusters without the field keep their template
			container.Env = append(container.Env, corev1.EnvVar{Name: v.name, Value: v.value})
		}
	}
	template.Spec.SecurityContext = nobody()
	template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: onDifferentNodes(ControllerName, ControllerName)}
	placed(&template, c.Spec.Controller.Placement)
	stamp(&template)
	return []Object{c.deployment(ControllerName, ControllerName, c.Spec.Controller.Replicas, replaceInPlace(), template)}
}

// protection returns limits in the form of `kiln controller --control-plane-protection`; "" for the defaults.
func protection(p v1alpha1.ControlPlaneProtection) string {
	if p.Mode != v1alpha1.ProtectionUnlimited && p.PacketsPerSecond == (v1alpha1.ControlPacketRates{}) {
		return ""
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers and a string
	}
	return string(text)
}

// CIDRs returns the pod, join and Service networks in the controller's arguments: the networks in use.
func CIDRs(controller *appsv1.Deployment) (all []string) {
	for _, arg := range controller.Spec.Template.Spec.Containers[0].Args {
		if name, list, _ := strings.Cut(arg, "="); strings.HasSuffix(name, "-cidrs") {
			all = append(all, strings.Split(list, ",")...)
		}
	}
	return all
}

// nobody returns the security context of a user without rights on the node. Its group can read the mounted Secret.
func nobody() *corev1.PodSecurityContext {
	const id = int64(65532)
	return &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(id), RunAsGroup: new(id), FSGroup: new(id),
	}
}
