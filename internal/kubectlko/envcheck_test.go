// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/envcheck"
	"github.com/kiln-net/kiln/internal/envcheck/envchecktest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/golden"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

// code returns the exit code of a command.
func code(err error) int {
	var status utilexec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return status.ExitStatus()
	}
	return 1
}

// serverVersion is the version of the tests' API server, which golden files do not name.
var serverVersion = regexp.MustCompile(`v1\.\d+\.\d+\S*`)

// TestMigrationFromKubeOVN reads a cluster with Kube-OVN and its definitions, replaces them, and installs the proposed OVNCluster.
func TestMigrationFromKubeOVN(t *testing.T) {
	w := useWorld(t, apiserver.StartFor(t, apiserver.NoKinds)) // with the kinds of Kube-OVN instead, and without an OVNCluster
	envchecktest.Define(t, w.objects)
	envchecktest.Create(t, w.objects, envchecktest.Objects)
	envchecktest.Create(t, w.objects, envchecktest.Workloads)
	w.serviceCIDRs() // the API server creates them after its start

	text, err := w.ko("env-check", "--migrate")
	if code(err) != exitFailed {
		t.Errorf("exit code %d, want %d: %v", code(err), exitFailed, err)
	}
	golden.Compare(t, "testdata/migrate.txt", []byte(text))
	if text, err = w.ko("env-check"); code(err) != exitFailed {
		t.Errorf("exit code %d of a cluster with Kube-OVN: %v", code(err), err)
	}
	golden.Compare(t, "testdata/env-check.txt", []byte(serverVersion.ReplaceAllString(text, "v1.x")))

	var report envcheck.Report
	text, _ = w.ko("env-check", "--migrate", "-o", "json")
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Findings) == 0 || report.OVNCluster["kind"] != "OVNCluster" {
		t.Errorf("the JSON report is %s: %v", text, err)
	}

	envchecktest.Replace(t, w.objects, filepath.Join("..", "..", "config", "crd", "bases"))
	manifest, _ := w.ko("env-check", "--migrate", "-o", "ovncluster")
	file := filepath.Join(t.TempDir(), "ovncluster.yaml")
	must.Succeed(w, os.WriteFile(file, []byte(manifest), 0o600))
	apply := client.RawPatch(types.ApplyPatchType, []byte(manifest))
	eventually.Wait{For: "the proposed OVNCluster is accepted"}.Succeeds(t, func() error {
		oc := envchecktest.OVNCluster()
		return w.objects.Patch(t.Context(), oc, apply, client.FieldOwner("kubectl"))
	})
	if text, err = w.ko("env-check", "-f", file); !strings.Contains(text, "kinds are served, of versions v1 and v1alpha1") {
		t.Errorf("after the replacement of the definitions: %v\n%s", err, text)
	}
}

// TestEnvironment checks a cluster that fits Kiln, and one change after another that does not.
func TestEnvironment(t *testing.T) {
	w := newWorld(t)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "cp", Labels: map[string]string{corev1.LabelOSStable: "linux", "node-role.kubernetes.io/control-plane": "true"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
	status := node.Status
	must.Succeed(w, w.objects.Create(t.Context(), node))
	node.Status = status
	must.Succeed(w, w.objects.Status().Update(t.Context(), node))
	cidrs := w.serviceCIDRs()
	manifest := func(spec string) string {
		file := filepath.Join(t.TempDir(), "ovncluster.yaml")
		must.Succeed(w, os.WriteFile(file, []byte("apiVersion: kubeovn.io/v1alpha1\nkind: OVNCluster\nmetadata: {name: default}\nspec: "+spec+"\n"), 0o600))
		return file
	}
	fits := manifest(`{network: {serviceCIDRs: ["` + cidrs + `"]}}`)
	if text, err := w.ko("env-check", "-f", fits); code(err) != 0 {
		t.Errorf("exit code %d of a cluster that fits:\n%s", code(err), text)
	}
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"a node in the pods' network", []string{"-f", manifest(`{network: {podCIDRs: [192.0.2.0/24], serviceCIDRs: ["` + cidrs + `"]}}`)}, 1, "contains 192.0.2.1, the address of node cp"},
		{"too few nodes", []string{"-f", manifest(`{central: {replicas: 3}, network: {serviceCIDRs: ["` + cidrs + `"]}}`)}, 1, "1 nodes match node-role.kubernetes.io/control-plane, and 3 are needed"},
		{"other Services", []string{"-f", manifest(`{network: {serviceCIDRs: [172.16.0.0/16]}}`)}, 1, "which is not in network.serviceCIDRs 172.16.0.0/16"},
		{"an unknown field", []string{"-f", manifest(`{nodes: {datapaht: Kernel}}`)}, 2, "datapaht"},
		{"a missing file", []string{"-f", "/does/not/exist"}, 2, "no such file"},
		{"an unknown format", []string{"-o", "xml"}, 2, `--output "xml"`},
		{"a format of --migrate", []string{"-o", "ovncluster"}, 2, "add --migrate"},
		{"an unknown flag", []string{"--nonsense"}, 2, "unknown flag: --nonsense"},
		{"arguments", []string{"nonsense"}, 2, "nonsense"},
	} {
		if text, err := w.ko(append([]string{"env-check"}, tt.args...)...); code(err) != tt.code || !strings.Contains(text, tt.want) {
			t.Errorf("%s: exit code %d, want %d, with %q in\n%s", tt.name, code(err), tt.code, tt.want, text)
		}
	}
	if out, err := run("--kubeconfig=/does/not/exist", "env-check"); code(err) != exitUnread || !strings.Contains(out, "/does/not/exist") {
		t.Errorf("without an API server: exit code %d, %s", code(err), out)
	}
}

// TestSpecOfManifestsWithSeveralDocuments reads the OVNCluster of each sample, some of which have other objects in the same file.
func TestSpecOfManifestsWithSeveralDocuments(t *testing.T) {
	samples, err := filepath.Glob(filepath.Join("..", "..", "config", "samples", "ovncluster*.yaml"))
	must.Succeed(t, err)
	if len(samples) == 0 {
		t.Fatal("there are no samples of an OVNCluster")
	}
	for _, sample := range samples {
		if spec, err := specOf(sample); err != nil || spec == nil {
			t.Errorf("%s: %v", sample, err)
		}
	}
	const claim, cluster = "kind: PersistentVolumeClaim\nspec: {accessModes: [ReadWriteMany]}\n", "kind: OVNCluster\nspec: {network: {mtu: 1400}}\n"
	for _, tt := range []struct{ name, content, problem string }{
		{"a comment and empty documents", "# comment\n---\n---\n" + cluster + "---\n", ""},
		{"the OVNCluster behind another object", claim + "---\n" + cluster, ""},
		{"no OVNCluster", claim, "no document of kind OVNCluster"},
		{"two OVNClusters", cluster + "---\n" + cluster, "several documents of kind OVNCluster"},
		{"text that is not YAML", cluster + "---\n\tx", "read the manifest"},
	} {
		file := filepath.Join(t.TempDir(), "manifest.yaml")
		must.Succeed(t, os.WriteFile(file, []byte(tt.content), 0o600))
		spec, err := specOf(file)
		if tt.problem != "" {
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.problem)
			}
			continue
		}
		if err != nil || spec.Network.MTU != 1400 {
			t.Errorf("%s: %v, %v", tt.name, spec, err)
		}
	}
}

// serviceCIDRs returns a network with the ClusterIP of the API server.
func (w *world) serviceCIDRs() string {
	var service corev1.Service
	eventually.Wait{For: "the Service kubernetes"}.Succeeds(w.T, func() error {
		return w.objects.Get(w.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &service)
	})
	eventually.Wait{For: "a ServiceCIDR"}.Holds(w.T, func() bool {
		var cidrs networkingv1.ServiceCIDRList
		must.Succeed(w, w.objects.List(w.Context(), &cidrs))
		return len(cidrs.Items) > 0
	})
	return service.Spec.ClusterIP[:strings.LastIndex(service.Spec.ClusterIP, ".")] + ".0/24"
}
