// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/pki"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/internal/testing/golden"
)

func TestGoldenFilesOfANode(t *testing.T) {
	top := plan(t)
	for _, n := range []topology.Node{top.Nodes()[0], top.Nodes()[2]} {
		kubelet, err := KubeletConfiguration(top, n)
		same(t, n.Name+".kubelet.yaml", kubelet, err)
		proxy, err := KubeProxyConfiguration(n)
		same(t, n.Name+".kube-proxy.yaml", proxy, err)
		programs, err := json.MarshalIndent(Programs(top, n), "", "  ")
		same(t, n.Name+".programs.json", append(programs, '\n'), err)
	}
	same(t, "containerd.toml", Containerd(), nil)
	same(t, "hosts.toml", Registry(), nil)
}

func TestControlPlaneRunsOnTheFirstNodeOnly(t *testing.T) {
	top := plan(t)
	for i, n := range top.Nodes() {
		names := []string{}
		for _, p := range Programs(top, n) {
			names = append(names, p.Name)
		}
		if has := slices.Contains(names, "kube-apiserver"); has != (i == 0) {
			t.Errorf("node %d, %s, runs %v", i, n.Name, names)
		}
	}
}

func TestKubeProxyRunsWhereItIsAskedFor(t *testing.T) {
	top := plan(t)
	for _, want := range []bool{true, false} {
		top.KubeProxy = want
		for _, n := range top.Nodes() {
			if has := slices.ContainsFunc(Programs(top, n), func(p machine.Program) bool { return p.Name == "kube-proxy" }); has != want {
				t.Errorf("%s runs kube-proxy: %t, want %t", n.Name, has, want)
			}
		}
	}
}

func TestSubjectsAreTheUsersThatKubernetesBindsRolesTo(t *testing.T) {
	want := map[Client]string{
		Kubelet: "system:node:worker-1 system:nodes", KubeProxy: "system:kube-proxy ", Scheduler: "system:kube-scheduler ",
		ControllerManager: "system:kube-controller-manager ", Admin: "kubernetes-admin system:masters",
	}
	for client, w := range want {
		s := client.Subject("worker-1")
		if got := s.Name + " " + strings.Join(s.Groups, ","); got != w {
			t.Errorf("%s: got %q, want %q", client, got, w)
		}
	}
}

func TestKubeconfigLoads(t *testing.T) {
	top := plan(t)
	raw, err := Kubeconfig(top.APIServer()[1], []byte("authority"), pki.Pair{Certificate: []byte("c"), Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.Load(raw)
	if err != nil {
		t.Fatal(err)
	}
	cluster := c.Clusters[c.Contexts[c.CurrentContext].Cluster]
	if cluster.Server != "https://[fd00:172:30::b]:6443" || string(cluster.CertificateAuthorityData) != "authority" {
		t.Errorf("got cluster %+v", cluster)
	}
}

func plan(t *testing.T) topology.Topology {
	t.Helper()
	top, err := topology.New(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	top.KubeProxy = true
	return top
}

func same(t *testing.T, name string, got []byte, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, filepath.Join("testdata", name), got)
}
