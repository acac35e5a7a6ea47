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
		args:          controllerArgs(c),
		health:        controllerHealthPort,
		resources:     firstSet(c.Spec.Controller.Resources, requests("200m", "256Mi")),
		security:      confined(),
		grace:         30,
		tolerations:   Tolerations(c.Spec.Controller.Placement),
		mounts:        []mount{tlsMount(ControllerSecret)},
	})
	template.Spec.SecurityContext = nobody()
	template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: onDifferentNodes(ControllerName, ControllerName)}
	placed(&template, c.Spec.Controller.Placement)
	stamp(&template)
	return []Object{c.deployment(ControllerName, ControllerName, c.Spec.Controller.Replicas, replaceInPlace(), template)}
}

func controllerArgs(c Config) []string {
	network := c.Spec.Network
	args := []string{
		"controller",
		"--pod-cidrs=" + strings.Join(network.PodCIDRs, ","),
		"--join-cidrs=" + strings.Join(network.JoinCIDRs, ","),
		"--service-cidrs=" + strings.Join(network.ServiceCIDRs, ","),
		"--tls-dir=" + tlsDirectory,
	}
	for _, f := range []struct{ flag, value, usual string }{
		{"--membership=", string(c.Spec.Tenancy.Membership), ""},
		{"--cluster-access=", string(c.Spec.Tenancy.ClusterAccess), ""},
		{"--port-security=", string(c.Spec.Tenancy.PortSecurity), ""},
		{"--pod-access=", string(c.Spec.Services.PodAccess), string(v1alpha1.PodAccessOVN)},
		{"--pod-gateways=", strings.Join(network.PodGateways, ","), ""},
		{"--pod-vlan=", network.PodVlan, ""},
		{"--exclude-ips=", strings.Join(network.ExcludeIPs, ","), ""},
		{"--network-policies=", string(c.Spec.Policies.NetworkPolicies), string(v1alpha1.NetworkPoliciesEnforced)},
		{"--control-plane-protection=", protection(network.ControlPlaneProtection), ""},
	} {
		if f.value != "" && f.value != f.usual { // clusters without the field keep their template
			args = append(args, f.flag+f.value)
		}
	}
	return args
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
