// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
)

func TestParseExternalGateways(t *testing.T) {
	many := make([]string, v1alpha1.MaxExternalGatewayNodes+1)
	for i := range many {
		many[i] = fmt.Sprint("n", i)
	}
	for name, tt := range map[string]struct {
		data map[string]string
		want string // nodes, or - for no settings
		err  string
	}{
		"no ConfigMap":          {nil, "-", ""},
		"nothing in it":         {map[string]string{"external-gw-nodes": "n1"}, "-", ""},
		"disabled, with a typo": {map[string]string{"enable-external-gw": "false", "external-gw-nodes": "N_1"}, "-", ""},
		"labels only":           {map[string]string{"enable-external-gw": "true"}, "", ""},
		"nodes":                 {map[string]string{"enable-external-gw": " true\n", "external-gw-nodes": "n2, n1,,n2,"}, "n1,n2", ""},
		"keys of objects":       {map[string]string{"enable-external-gw": "true", "type": "distributed", "external-gw-nic": "eth1", "external-gw-addr": "x", "nic-ip": "", "nic-mac": "y"}, "", ""},
		"another word":          {map[string]string{"enable-external-gw": "yes"}, "", `enable-external-gw is "yes"`},
		"another separator":     {map[string]string{"enable-external-gw": "true", "external-gw-nodes": "n1;n2"}, "", `external-gw-nodes has "n1;n2"`},
		"control characters":    {map[string]string{"enable-external-gw": "true", "external-gw-nodes": "n1\x00" + strings.Repeat("x", 1000)}, "", `external-gw-nodes has "n1\x00`},
		"the maximum":           {map[string]string{"enable-external-gw": "true", "external-gw-nodes": strings.Join(many[1:], ",")}, "", ""},
		"too many":              {map[string]string{"enable-external-gw": "true", "external-gw-nodes": strings.Join(many, ",")}, "", "has 1001 nodes, more than 1000"},
	} {
		got, err := parseExternalGateways(tt.data)
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) || len(err.Error()) > 300 {
				t.Errorf("%s: the error is %v", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.want == "-" != (got == nil):
			t.Errorf("%s: got %v", name, got)
		case tt.want != "" && tt.want != "-" && strings.Join(got.Nodes, ",") != tt.want:
			t.Errorf("%s: got %v", name, got)
		}
	}
	if k8s.KubeletsMaySatisfy(map[string]string{v1alpha1.ExternalGatewayLabel: "true"}) {
		t.Error("a node can select itself by the label of external gateways")
	}
}

// A change of the ConfigMap reaches the status. An invalid one leaves the last valid settings, also in a new operator, and the condition Available names the key.
func TestTheConfigMapOfExternalGateways(t *testing.T) {
	s := installed(t)
	g := newG(t)
	settings := func() string {
		c := s.cluster(t)
		if c.Status.ExternalGateways == nil {
			return "none"
		}
		return "nodes " + strings.Join(c.Status.ExternalGateways.Nodes, ",")
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: v1alpha1.ExternalGatewayConfig}}
	t.Cleanup(func() { _ = s.admin.Delete(context.Background(), config) })
	config.Data = map[string]string{"enable-external-gw": "true", "external-gw-nodes": "worker-1"}
	g.Expect(s.admin.Create(t.Context(), config)).To(Succeed())
	g.Eventually(settings).Should(Equal("nodes worker-1"))
	set := func(key, value string) {
		t.Helper()
		config.Data[key] = value
		g.Expect(s.admin.Update(t.Context(), config)).To(Succeed())
	}
	set("external-gw-nodes", "worker_1")
	g.Eventually(s.condition(t, "Available")).Should(ContainSubstring(`ConfigMap kube-system/ovn-external-gw-config: external-gw-nodes has "worker_1"`))
	g.Expect(settings()).To(Equal("nodes worker-1"))
	g.Expect(s.stopOperator()).To(Succeed())
	s.operator(t)
	s.poke(t, "again")
	g.Eventually(s.condition(t, "Available")).Should(ContainSubstring("worker_1"))
	g.Expect(settings()).To(Equal("nodes worker-1"))
	set("external-gw-nodes", "")
	g.Eventually(settings).Should(Equal("nodes "))
	g.Eventually(s.condition(t, "Available")).ShouldNot(ContainSubstring("ConfigMap"))
	g.Expect(s.admin.Delete(t.Context(), config)).To(Succeed())
	g.Eventually(settings).Should(Equal("none"))
}
