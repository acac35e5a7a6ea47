// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

func TestCoreDNSHasTheAddressesAndTheImageOfThePlan(t *testing.T) {
	for _, ipv6First := range []bool{false, true} {
		coreDNSFollows(t, topology.Topology{ControlPlanes: 1, IPv6First: ipv6First})
	}
}

func coreDNSFollows(t *testing.T, top topology.Topology) {
	t.Helper()
	objects, err := coreDNSObjects(top)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		kinds[o.GetKind()] = o
	}
	ips, _, err := unstructured.NestedStringSlice(kinds["Service"].Object, "spec", "clusterIPs")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range top.DNSServiceIP() {
		if got, err := netip.ParseAddr(ips[i]); err != nil || got != want {
			t.Errorf("address %d of the Service is %s, want %s (%v)", i, ips[i], want, err)
		}
	}
	containers, _, err := unstructured.NestedSlice(kinds["Deployment"].Object, "spec", "template", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	if image := containers[0].(map[string]any)["image"]; image != config.CoreDNSImage {
		t.Errorf("the image is %s, want %s", image, config.CoreDNSImage)
	}
}

func TestNodesGetTheCredentialsTheyNeedAndNoOthers(t *testing.T) {
	keys, err := stateDir(t.TempDir()).loadAuthorities()
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.New(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	secret := []string{config.PKIDir + "/ca.key", config.PKIDir + "/sa.key", config.Admin.ConfigFile(), config.Scheduler.ConfigFile()}
	for i, n := range top.Nodes() {
		files, err := keys.nodeFiles(top, n)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range secret {
			if _, there := files[path]; there != (i == 0) {
				t.Errorf("%s has %s: %v", n.Name, path, there)
			}
		}
		for path := range files {
			if name, isKey := strings.CutSuffix(path, ".key"); isKey && name != config.PKIDir+"/sa" {
				if _, err := tls.X509KeyPair(files[name+".crt"], files[path]); err != nil {
					t.Errorf("%s of %s: %v", name, n.Name, err)
				}
			}
		}
	}
}

func TestAuthoritiesOutliveTheProcess(t *testing.T) {
	dir := stateDir(t.TempDir())
	first, err := dir.loadAuthorities()
	if err != nil {
		t.Fatal(err)
	}
	second, err := dir.loadAuthorities()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first.cluster.Certificate, second.cluster.Certificate) || !slices.Equal(first.accounts.Key, second.accounts.Key) {
		t.Error("loaded authorities differ from the created ones")
	}
}

func TestALabOfAnotherSizeHasToGoDownFirst(t *testing.T) {
	dir := stateDir(t.TempDir())
	small, _ := topology.New(1, 2)
	large, _ := topology.New(3, 2)
	s, err := dir.begin(small)
	if err != nil {
		t.Fatal(err)
	}
	s.Machines["worker-1"] = machine.Process{PID: 7, Started: 9}
	if err := dir.save(s); err != nil {
		t.Fatal(err)
	}
	if again, err := dir.begin(small); err != nil || again.Machines["worker-1"] != s.Machines["worker-1"] {
		t.Errorf("the same size again gives %+v (%v)", again, err)
	}
	if _, err := dir.begin(large); err == nil {
		t.Error("another size gives no error")
	}
}

func TestOnlyOneCommandChangesALab(t *testing.T) {
	dir := stateDir(t.TempDir())
	unlock, err := dir.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.lock(); err == nil {
		t.Error("a second command got the lock")
	}
	unlock()
	again, err := dir.lock()
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestOpenSaysHowToGetALab(t *testing.T) {
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "lab up") {
		t.Errorf("got %v", err)
	}
}

func TestClonedImagesShareLayersButNotDatabases(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	layer, database := "snapshotter/snapshots/1/fs/file", "bolt/meta.db"
	for _, path := range []string{layer, database} {
		if err := machine.WriteFile(filepath.Join(from, path), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second call finds the directory
		if err := cloneImages(t.Context(), from, to); err != nil {
			t.Fatal(err)
		}
	}
	for path, shared := range map[string]bool{layer: true, database: false} {
		a, errA := os.Stat(filepath.Join(from, path))
		b, errB := os.Stat(filepath.Join(to, path))
		if errA != nil || errB != nil || os.SameFile(a, b) != shared {
			t.Errorf("%s: shared %v, want %v (%v, %v)", path, !shared, shared, errA, errB)
		}
	}
}
