// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// The OVNCluster, or else the ConfigMap of Kube-OVN, narrows the nodes that can host external ports. Neither adds a node to the ProviderNetwork's.
func TestTheNodesOfExternalGateways(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": name}}})
	}
	w.external("external", 30, "192.0.2.0/24", "192.0.2.254")
	w.provider("n1", "n2")
	blue := w.vpc("blue", func(s *kubeovnv1.VpcSpec) { s.EnableExternal = true })
	hosts := func(want ...string) {
		t.Helper()
		w.Rows("Gateway_Chassis", func(row nbtest.Row) string { return fmt.Sprint(row["chassis_name"]) }, want...)
	}
	hosts("n1", "n2")
	label := func(node, key, value string) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		w.Get(n)
		w.Change(n, func() { n.Labels[key] = value })
	}
	cluster := &v1alpha1.OVNCluster{}
	set := func(selector map[string]string, configured *v1alpha1.ExternalGatewaysStatus) {
		cluster.Spec.Network.ExternalGateways.NodeSelector, cluster.Status.ExternalGateways = selector, configured
		w.settings.Set(cluster)
	}
	set(nil, &v1alpha1.ExternalGatewaysStatus{Nodes: []string{"n2", "n3"}}) // n3 is not of the ProviderNetwork
	hosts("n2")
	label("n1", v1alpha1.ExternalGatewayLabel, "true")
	hosts("n1", "n2")
	label("n1", v1alpha1.ExternalGatewayLabel, "false")
	hosts("n2")
	set(map[string]string{"rack": "n1"}, cluster.Status.ExternalGateways) // the field precedes the ConfigMap
	hosts("n1")
	label("n2", "rack", "n1")
	hosts("n1", "n2")
	set(map[string]string{"rack": "none"}, nil) // the port stays where it is
	w.says(blue, metav1.ConditionFalse, "no ready node of ProviderNetwork net1", "network.externalGateways.nodeSelector")
	hosts("n1", "n2")
	set(nil, &v1alpha1.ExternalGatewaysStatus{})
	w.says(blue, metav1.ConditionFalse, "ConfigMap ovn-external-gw-config: add the node to external-gw-nodes, or label it with ovn.kubernetes.io/external-gw=true")
	set(nil, nil)
	w.says(blue, metav1.ConditionTrue)
	hosts("n1", "n2")
}
