// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheKustomizationListsTheSamples(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "config", "samples")
	want, err := list(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, kustomization))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the kustomization does not list the samples: run `make manifests` (-want +got):\n%s", diff)
	}
}

func TestSamplesFollowWhatTheyNeed(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a_pod.yaml": "kind: Pod", "b_subnet.yaml": "kind: Subnet", "c_vpc.yaml": "# A VPC with a subnet.\nkind: Vpc\n---\nkind: Subnet", "namespaces.yaml": "kind: Namespace",
		"ovncluster.yaml": "kind: OVNCluster", "ovncluster_backup.yaml": "kind: OVNCluster", "policy_any.yaml": "kind: ValidatingAdmissionPolicy",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := header + "- namespaces.yaml\n- ovncluster.yaml\n- c_vpc.yaml\n- b_subnet.yaml\n- a_pod.yaml\n"
	if got, err := list(dir); err != nil || string(got) != want {
		t.Errorf("the list is %s (%v), want %s", got, err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "empty.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := list(dir); err == nil {
		t.Error("a sample without an object is accepted")
	}
}
