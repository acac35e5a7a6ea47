// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// hidden is a secret that objects of the test have where users keep secrets.
const hidden = "hunter2"

// unpack returns the files of an archive, by the name below its directory.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	compressed, err := os.Open(file)
	must.Succeed(t, err)
	defer compressed.Close()
	content, err := gzip.NewReader(compressed)
	must.Succeed(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must.Succeed(t, err)
		text, err := io.ReadAll(archive)
		must.Succeed(t, err)
		directory, name, _ := strings.Cut(h.Name, "/")
		if directory != strings.TrimSuffix(filepath.Base(file), archiveSuffix) {
			t.Errorf("%s is not in the directory of the archive's name", h.Name)
		}
		files[name] = string(text)
	}
}

// createWithSecrets creates objects with secrets, and pods of Open vSwitch on two nodes.
func createWithSecrets(w *world) {
	w.Helper()
	objects := []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "of-a-user"}, StringData: map[string]string{"key": hidden}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "of-a-user"}, Data: map[string]string{"key": hidden}},
		&kubeovnv1.BgpConf{ObjectMeta: metav1.ObjectMeta{Name: "peers"}, Spec: kubeovnv1.BgpConfSpec{LocalASN: 65001, Password: hidden}},
	}
	for _, node := range []string{"node-1", "node-2"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "ovs-ovn-" + node, Labels: map[string]string{componentLabel: openVSwitch},
				Annotations: map[string]string{
					corev1.LastAppliedConfigAnnotation: `{"password":"` + hidden + `"}`, "vault.example/inject": hidden, "kubeovn.io/api-token": hidden, kubeovnv1.AnnotationLogicalSwitch.Key(): "shown",
				},
			},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
				Name: "ovs", Image: "kiln", Env: []corev1.EnvVar{{Name: "PROXY", Value: "http://user:" + hidden + "@proxy"}},
				Command: []string{"sh", "-c", "exec ovs --token " + hidden},
				Args:    []string{"--token=" + hidden, "--password", hidden, "--endpoint=https://user:" + hidden + "@registry.example/path", "--log-level=debug"},
			}}},
		})
	}
	for _, o := range objects {
		must.Succeed(w, w.objects.Create(w.Context(), o))
	}
	w.Cleanup(func() {
		for _, o := range objects[:3] {
			must.Succeed(w, w.objects.Delete(context.Background(), o))
		}
	})
}

// TestASysdumpHasNoSecrets: programs and logs of pods cannot be read here, and the archive has the rest. The end-to-end suite tests these.
func TestASysdumpHasNoSecrets(t *testing.T) {
	w := newWorld(t)
	createWithSecrets(w)
	directory := t.TempDir()
	file := filepath.Join(directory, "dump.tar.gz")
	said, err := w.ko("sysdump", file, "--max-nodes=1")
	must.Succeed(t, err)
	for _, want := range []string{file, "the state of 1 of 2 nodes is not in the archive", "node node-1: ", "errors.txt in the archive"} {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, which lacks %q", said, want)
		}
	}
	files := unpack(t, file)
	for name, want := range map[string]string{
		"version.txt": "COMPONENT", "status.txt": "DATABASE", "nb-status.txt": "leader:", "objects/OVNCluster.yaml": "name: default", "objects/Node.yaml": "name: node-2",
		"objects/Pod.yaml": kubeovnv1.AnnotationLogicalSwitch.Key() + ": shown", "objects/Service.yaml": "name: kubernetes", "objects/EndpointSlice.yaml": "name: kubernetes",
		"objects/BgpConf.yaml": "localASN: 65001", "objects/Namespace.yaml": "name: kube-system", "objects/Subnet.yaml": "", "objects/NetworkPolicy.yaml": "",
		"errors.txt": "log of ovs-ovn-node-1: ", "sb-status.txt": "NODE",
	} {
		if content, there := files[name]; !there || !strings.Contains(content, want) {
			t.Errorf("%s: %q, want one with %q", name, content, want)
		}
	}
	for name, content := range files {
		if strings.Contains(content, hidden) || strings.Contains(name, "Secret") || strings.Contains(name, "ConfigMap") {
			t.Errorf("%s has a secret: %s", name, content)
		}
		if strings.Contains(name, "node-2") {
			t.Errorf("%s is of a node that was not selected", name)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive: %v, %v", info, err)
	}
	left, err := os.ReadDir(directory)
	must.Succeed(t, err)
	if len(left) != 1 {
		t.Errorf("the directory has %v", left)
	}
	w.fails("exists: name another file", "sysdump", file)
}

func TestASysdumpOfSomeNamespacesAndNodes(t *testing.T) {
	w := newWorld(t)
	createWithSecrets(w)
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	said, err := w.ko("sysdump", file, "--namespaces=kube-system", "--node=node-2,node-3", "--databases=false")
	must.Succeed(t, err)
	files := unpack(t, file)
	if services := files["objects/Service.yaml"]; strings.Contains(services, "name: kubernetes") {
		t.Errorf("Services of another namespace: %s", services)
	}
	if namespaces := files["objects/Namespace.yaml"]; strings.Contains(namespaces, "name: default") || !strings.Contains(namespaces, "name: kube-system") {
		t.Errorf("namespaces: %s", namespaces)
	}
	if !strings.Contains(said, "node node-3 has no pod of ovs-ovn") || strings.Contains(files[errorsFile], "ovs-ovn-node-1") || strings.Contains(files[errorsFile], "databases/") {
		t.Errorf("it said %q; errors: %s", said, files[errorsFile])
	}
}

func TestASysdumpThatCannotBeMade(t *testing.T) {
	w := newWorld(t)
	w.fails("ends with .tar.gz", "sysdump", "dump.zip")
	w.fails("greater than 0", "sysdump", "--timeout=0s")
	w.fails("make a directory next to the archive", "sysdump", "/does/not/exist/dump.tar.gz")
	directory := t.TempDir()
	file := filepath.Join(directory, "dump.tar.gz")
	w.fails("nothing could be read", "--server=https://127.0.0.1:1", "sysdump", file)
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	cmd := NewCommand(strings.NewReader(""), io.Discard, io.Discard)
	cmd.SetArgs([]string{"--kubeconfig=" + w.kubeconfig, "sysdump", file})
	if err := cmd.ExecuteContext(interrupted); err == nil || !strings.Contains(err.Error(), "no archive is written") {
		t.Errorf("an interrupt: %v", err)
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) > 0 {
		t.Errorf("the directory has %v, %v", left, err)
	}
}

func TestLargePartsAreCut(t *testing.T) {
	into := &bytes.Buffer{}
	out := &limited{into, 4}
	if n, err := out.Write([]byte("abcd")); n != 4 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := out.Write([]byte("e")); err == nil || into.String() != "abcd" {
		t.Errorf("%v, %q", err, into)
	}
}
