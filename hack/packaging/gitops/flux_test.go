// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/cel-go/cel"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// fluxChecks returns the expressions for the OVNCluster in the order in which Flux evaluates them: the first true one decides.
func fluxChecks(t *testing.T) [][2]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "gitops", "flux", "kiln.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var kustomization struct {
			Spec struct{ HealthCheckExprs []map[string]string }
		}
		if err := decoder.Decode(&kustomization); err != nil {
			t.Fatal(err)
		}
		for _, exprs := range kustomization.Spec.HealthCheckExprs {
			return [][2]string{{"InProgress", exprs["inProgress"]}, {"Failed", exprs["failed"]}, {"Current", exprs["current"]}}
		}
	}
}

func TestFluxReadsConditions(t *testing.T) {
	environment, err := cel.NewEnv(cel.Variable("metadata", cel.DynType), cel.Variable("status", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	checks := fluxChecks(t)
	for _, tt := range []struct{ name, object, want string }{
		{"a new OVNCluster", `{metadata: {generation: 1}, status: {}}`, "InProgress"},
		{"a changed one", `{metadata: {generation: 2}, status: {observedGeneration: 1, conditions: [{type: Available, status: "True"}]}}`, "InProgress"},
		{"an installation", `
metadata: {generation: 1}
status: {observedGeneration: 1, conditions: [{type: Available, status: "False"}, {type: Progressing, status: "True"}]}`, "InProgress"},
		{"a complete installation", `
metadata: {generation: 1}
status: {observedGeneration: 1, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "False"}, {type: Degraded, status: "False"}]}`, "Current"},
		{"an installation that needs an administrator", `
metadata: {generation: 1}
status: {observedGeneration: 1, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "False"}, {type: Degraded, status: "True"}]}`, "Failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(tt.object), &object); err != nil {
				t.Fatal(err)
			}
			for _, check := range checks {
				ast, issues := environment.Compile(check[1])
				if issues.Err() != nil {
					t.Fatal(issues.Err())
				}
				program, err := environment.Program(ast)
				if err != nil {
					t.Fatal(err)
				}
				value, _, err := program.Eval(object)
				if err != nil {
					t.Fatalf("%s: %v", check[0], err)
				}
				if value.Value() == true {
					if check[0] != tt.want {
						t.Errorf("it is %s", check[0])
					}
					return
				}
			}
			t.Error("no expression is true")
		})
	}
}
