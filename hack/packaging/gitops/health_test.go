// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"os"
	"path/filepath"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"
)

// scripts returns the health checks for Argo CD, by the kinds that they are for.
func scripts(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "gitops", "argocd", "argocd-cm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var cm struct{ Data map[string]string }
	if err := yaml.Unmarshal(text, &cm); err != nil {
		t.Fatal(err)
	}
	var customizations map[string]map[string]string
	if err := yaml.Unmarshal([]byte(cm.Data["resource.customizations"]), &customizations); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for kind, customization := range customizations {
		found[kind] = customization["health.lua"]
	}
	return found
}

// TestHealth runs the health checks with the interpreter of Argo CD.
func TestHealth(t *testing.T) {
	checks := scripts(t)
	for _, tt := range []struct{ name, check, object, status, message string }{
		{"a new OVNCluster", "kubeovn.io/OVNCluster", `metadata: {generation: 1}`, "Progressing", "the operator has not reported on this generation yet"},
		{"an OVNCluster that changed", "kubeovn.io/OVNCluster", `
metadata: {generation: 2}
status: {observedGeneration: 1, conditions: [{type: Available, status: "True", message: ready}]}`, "Progressing", "the operator has not reported on this generation yet"},
		{"an OVNCluster during the installation", "kubeovn.io/OVNCluster", `
metadata: {generation: 1}
status: {observedGeneration: 1, conditions: [{type: Available, status: "False", message: waiting for northd}, {type: Progressing, status: "True", message: x}]}`,
			"Progressing", "waiting for northd"},
		{"an OVNCluster in an upgrade", "kubeovn.io/OVNCluster", `
metadata: {generation: 1}
status: {observedGeneration: 1, conditions: [{type: Available, status: "True", message: ready}, {type: Progressing, status: "True", message: 2 of 5 nodes}]}`,
			"Progressing", "2 of 5 nodes"},
		{"a complete OVNCluster", "kubeovn.io/OVNCluster", `
metadata: {generation: 1}
status: {observedGeneration: 1, conditions: [{type: Available, status: "True", message: ready}, {type: Progressing, status: "False"}, {type: Degraded, status: "False"}]}`,
			"Healthy", "ready"},
		{"an OVNCluster that needs an administrator", "kubeovn.io/OVNCluster", `
metadata: {generation: 1}
status: {observedGeneration: 1, conditions: [{type: Available, status: "True"}, {type: Degraded, status: "True", message: the quorum is lost}]}`,
			"Degraded", "the quorum is lost"},
		{"a new Subnet", "kubeovn.io/*", `{kind: Subnet, metadata: {generation: 1}}`, "Progressing", "the controller has not reported on this generation yet"},
		{"a Subnet that is ready", "kubeovn.io/*", `
kind: Subnet
metadata: {generation: 3}
status: {conditions: [{type: Validated, status: "False", observedGeneration: 3}, {type: Ready, status: "True", observedGeneration: 3, message: ready}]}`,
			"Healthy", "ready"},
		{"a Subnet that changed", "kubeovn.io/*", `
kind: Subnet
metadata: {generation: 4}
status: {conditions: [{type: Ready, status: "True", observedGeneration: 3, message: ready}]}`,
			"Progressing", "the controller has not reported on this generation yet"},
		{"an invalid Vpc", "kubeovn.io/*", `
kind: Vpc
metadata: {generation: 1}
status: {conditions: [{type: Ready, status: "False", observedGeneration: 1, message: two routes overlap}]}`,
			"Degraded", "two routes overlap"},
		{"an IP", "kubeovn.io/*", `{kind: IP, metadata: {generation: 1}}`, "Healthy", "an IP has an effect from its creation"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(tt.object), &object); err != nil {
				t.Fatal(err)
			}
			state := lua.NewState()
			defer state.Close()
			state.SetGlobal("obj", value(state, object))
			if err := state.DoString(checks[tt.check]); err != nil {
				t.Fatal(err)
			}
			result, isTable := state.Get(-1).(*lua.LTable)
			if !isTable {
				t.Fatalf("the check returns %v", state.Get(-1))
			}
			if status, message := result.RawGetString("status").String(), result.RawGetString("message").String(); status != tt.status || message != tt.message {
				t.Errorf("%s: %s", status, message)
			}
		})
	}
}

// value converts a value of JSON.
func value(state *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, field := range v {
			table.RawSetString(key, value(state, field))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, item := range v {
			table.Append(value(state, item))
		}
		return table
	case string:
		return lua.LString(v)
	case float64:
		return lua.LNumber(v)
	default:
		return lua.LNil
	}
}
