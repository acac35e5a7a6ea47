// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestTunnelTypesInCommon checks the property of ovn-controller that a change of tunnelType relies on: two nodes use an encapsulation that both
// offer, and geneve if both offer both.
func TestTunnelTypesInCommon(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	geneve, vxlan := v1alpha1.TunnelGeneve, v1alpha1.TunnelVXLAN
	addChassis(t, c.southbound, "192.0.2.21", geneve)
	addChassis(t, c.southbound, "192.0.2.22", vxlan)
	addChassis(t, c.southbound, "192.0.2.23", geneve, vxlan)
	o := nodeOptions(t, c)
	for _, step := range []struct {
		types []v1alpha1.TunnelType
		want  map[string]string
	}{
		{[]v1alpha1.TunnelType{geneve}, map[string]string{"192.0.2.21": "geneve", "192.0.2.23": "geneve"}},
		{[]v1alpha1.TunnelType{geneve, vxlan}, map[string]string{"192.0.2.21": "geneve", "192.0.2.22": "vxlan", "192.0.2.23": "geneve"}},
		{[]v1alpha1.TunnelType{vxlan}, map[string]string{"192.0.2.22": "vxlan", "192.0.2.23": "vxlan"}},
		{[]v1alpha1.TunnelType{vxlan, geneve}, map[string]string{"192.0.2.21": "geneve", "192.0.2.22": "vxlan", "192.0.2.23": "geneve"}},
	} {
		o.TunnelTypes, o.Clusters, o.Requests = step.types, clusters(c.cluster), signer(t, c.chassis)
		stop := background(t, func(ctx context.Context) error { return Run(ctx, o) })
		healthy(t, o.HealthAddress)
		supervisortest.Eventually(t, fmt.Sprintf("a node with %v has the right tunnels", step.types), func() error {
			if got := tunnels(t, o.socket()); !maps.Equal(got, step.want) {
				return fmt.Errorf("tunnels are %v, want %v", got, step.want)
			}
			return nil
		})
		must.Succeed(t, stop())
	}
}

// addChassis registers another chassis in the southbound database.
func addChassis(t *testing.T, socket, address string, types ...v1alpha1.TunnelType) {
	t.Helper()
	request, encaps := []any{"OVN_Southbound"}, []any{}
	for _, kind := range types {
		request = append(request, map[string]any{"op": "insert", "table": "Encap", "uuid-name": string(kind), "row": map[string]any{
			"type": kind, "ip": address, "chassis_name": address, "options": []any{"map", []any{[]any{"csum", "true"}}},
		}})
		encaps = append(encaps, []any{"named-uuid", string(kind)})
	}
	request = append(request, map[string]any{"op": "insert", "table": "Chassis", "row": map[string]any{
		"name": address, "hostname": address, "encaps": []any{"set", encaps},
	}})
	var answer []struct{ Error, Details string }
	transactAt(t, socket, request, &answer)
	if i := slices.IndexFunc(answer, func(a struct{ Error, Details string }) bool { return a.Error != "" }); i >= 0 {
		t.Fatalf("add chassis %s: %+v", address, answer[i])
	}
}

// tunnels returns the types of the node's tunnels, by the address of the other node.
func tunnels(t *testing.T, socket string) map[string]string {
	t.Helper()
	var answer []struct {
		Rows []struct {
			Type    string
			Options []any
		}
	}
	transactAt(t, socket, []any{"Open_vSwitch", map[string]any{
		"op": "select", "table": "Interface", "columns": []string{"type", "options"}, "where": []any{},
	}}, &answer)
	found := map[string]string{}
	for _, row := range answer[0].Rows {
		pairs, _ := row.Options[1].([]any)
		for _, pair := range pairs {
			if p := pair.([]any); p[0] == "remote_ip" {
				found[p[1].(string)] += row.Type
			}
		}
	}
	return found
}

func transactAt(t *testing.T, socket string, request, answer any) {
	t.Helper()
	conn, err := jsonrpc.Dial(t.Context(), socket)
	must.Succeed(t, err)
	defer conn.Close()
	must.Succeed(t, conn.Call("transact", request, answer))
}
