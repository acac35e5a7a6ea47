// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/image/debian"
	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// newBuild returns a build in directories of its own, with the CNI plugin as the only program and an empty Debian layer.
func newBuild(t *testing.T, tag string) *build {
	t.Helper()
	source, err := prepare.Source()
	if err != nil {
		t.Fatal(err)
	}
	b := &build{
		output: filepath.Join(t.TempDir(), "kiln.tar"), tag: tag, revision: "0123abc", report: progress.New(io.Discard),
		source: source, cache: cache.Dir(t.TempDir()), created: &v1.Time{}, programs: programs[1:2],
	}
	for _, architecture := range debian.Architectures {
		packages, err := debian.Lock(architecture)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := archive.WriteLayer(b.cache.ImageTar(architecture), []archive.Entry{{Path: "/etc"}}); err != nil {
			t.Fatal(err)
		}
		status := filepath.Join(b.cache.Path(prepared.ImageRoot(architecture)), debian.StatusDir)
		for _, dir := range []string{status, b.work(architecture)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range packages {
			if err := os.WriteFile(filepath.Join(status, p.Name), []byte("Package: "+p.Name+"\nSource: from-"+p.Name+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.compile(t.Context(), architecture); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func indexOf(t *testing.T, b *build) v1.ImageIndex {
	t.Helper()
	index, err := b.assemble(t.Context(), debian.Architectures)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func digest(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	hash, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

// TestTwoBuildsThatAreTransportedDifferentlyAreIdentical: one is pushed to a registry, the other goes through a layout in a file. Registries at loopback addresses
// are reached by plain HTTP.
func TestTwoBuildsThatAreTransportedDifferentlyAreIdentical(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/kiln-net/kiln"

	first := newBuild(t, repository+":v0.1.0")
	index := indexOf(t, first)
	if err := first.write(t.Context(), index, false); err != nil {
		t.Fatal(err)
	}
	second := newBuild(t, repository+":v0.1.0")
	if err := second.writeLayout(indexOf(t, second)); err != nil {
		t.Fatal(err)
	}
	fromFile, done, err := second.pushed(t.Context(), second.output)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	second.tag = repository + ":copied"
	if err := second.write(t.Context(), fromFile, false); err != nil {
		t.Fatal(err)
	}
	pulled := map[string]v1.ImageIndex{}
	for _, tag := range []string{"v0.1.0", "copied"} {
		reference, err := name.ParseReference(repository + ":" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if pulled[tag], err = remote.Index(reference); err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(pulled[tag]); err != nil {
			t.Error(err)
		}
	}
	if a, b := digest(t, pulled["v0.1.0"]), digest(t, pulled["copied"]); a != b || a != digest(t, index) {
		t.Errorf("digests: built %s, pushed %s, copied %s", digest(t, index), a, b)
	}
	checkIndex(t, pulled["copied"])
}

func checkIndex(t *testing.T, index v1.ImageIndex) {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		for label, want := range map[string]string{"version": "v0.1.0", "revision": "0123abc", "licenses": "Apache-2.0"} {
			if got := config.Config.Labels["org.opencontainers.image."+label]; got != want || manifest.Annotations["org.opencontainers.image."+label] != want {
				t.Errorf("label %s is %q", label, got)
			}
		}
		files := contents(t, img)
		for _, path := range []string{"opt/kiln/cni/kube-ovn", "usr/share/doc/kiln/copyright", "usr/share/doc/kiln/THIRD-PARTY-NOTICES"} {
			if len(files[path]) == 0 {
				t.Errorf("%s lacks /%s", m.Platform, path)
			}
		}
		checkBill(t, files["usr/share/doc/kiln/kiln.spdx.json"], m.Platform.Architecture)
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
		t.Error(diff)
	}
}

func checkBill(t *testing.T, raw []byte, architecture string) {
	t.Helper()
	var bill struct {
		SPDXVersion string
		Packages    []struct {
			Name, VersionInfo, SourceInfo string
			ExternalRefs                  []struct{ ReferenceLocator string }
		}
	}
	if err := json.Unmarshal(raw, &bill); err != nil {
		t.Fatal(err)
	}
	locked, err := debian.Lock(architecture)
	if err != nil {
		t.Fatal(err)
	}
	var locators, sources []string
	for _, p := range bill.Packages {
		sources = append(sources, p.SourceInfo)
		for _, r := range p.ExternalRefs {
			locators = append(locators, r.ReferenceLocator)
		}
	}
	i := slices.IndexFunc(locked, func(p debian.Package) bool { return p.Name == "ovn-host" })
	for _, want := range []string{
		"pkg:deb/debian/ovn-host@" + locked[i].Version + "?arch=" + architecture + "&distro=trixie", "pkg:golang/github.com/kiln-net/kiln@v0.1.0",
		"pkg:golang/github.com/containernetworking/cni@v1.3.1",
	} {
		if !slices.Contains(locators, want) {
			t.Errorf("the bill of materials for %s lacks %s", architecture, want)
		}
	}
	if bill.SPDXVersion != "SPDX-2.3" || !slices.Contains(sources, "source package: from-ovn-host") {
		t.Errorf("bill of materials in %s with sources %q", bill.SPDXVersion, sources)
	}
}

func contents(t *testing.T, img v1.Image) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	all := mutate.Extract(img)
	defer all.Close()
	for r := tar.NewReader(all); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDockerfileMakesTheSameImage compares the Dockerfile with the configuration that the build sets: no container engine runs here.
func TestDockerfileMakesTheSameImage(t *testing.T) {
	raw, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	b := &build{tag: "kiln:v0.1.0", created: &v1.Time{}}
	config := b.config()
	entrypoint, err := json.Marshal(config.Entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"FROM scratch", "ENV " + config.Env[0], "ENTRYPOINT " + string(entrypoint), "ADD ${TARGETARCH}/debian.tar /", "ADD ${TARGETARCH}/layer.tar /"} {
		if !bytes.Contains(raw, []byte("\n"+line+"\n")) {
			t.Errorf("the Dockerfile lacks the line %q", line)
		}
	}
	for label, value := range config.Labels {
		if strings.HasSuffix(label, ".version") {
			value = "${VERSION}"
		}
		if !bytes.Contains(raw, []byte(label+`="`+value+`"`)) {
			t.Errorf("the Dockerfile lacks the label %s=%q", label, value)
		}
	}
}

func TestPlatforms(t *testing.T) {
	for platforms, want := range map[string]string{"linux/amd64,linux/arm64": "amd64 arm64", "linux/arm64": "arm64", "windows/amd64": "", "amd64": "", "linux/": "", "": ""} {
		b := &build{}
		if platforms != "" {
			b.platforms = strings.Split(platforms, ",")
		}
		got, err := b.architectures()
		if strings.Join(got, " ") != want && err == nil || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", platforms, got, err)
		}
	}
}
