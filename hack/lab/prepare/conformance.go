// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/hack/lab/images"
)

// Programs of the end-to-end tests of Kubernetes, in the cache's program directory.
const (
	E2ETest = "e2e.test"
	Ginkgo  = "ginkgo"
	// issue74839 is the only program of the image that a connection tracking test uses.
	issue74839 = "regression-issue-74839"
)

// testsModule is the module of these programs, below the repository.
const testsModule = "hack/lab/programs/e2e"

// porterFiles are the TLS certificate and key of agnhost's server, in the sources of Kubernetes and in the cache. They are public.
const (
	porterSource = "test/images/agnhost/porter"
	porterFiles  = "e2e"
)

var porterNames = []string{"localhost.crt", "localhost.key"}

// Conformance builds the end-to-end tests of the Kubernetes version that the lab runs, ginkgo, and the contents of the tests'
// images.
func Conformance(ctx context.Context, o Options) error {
	return ensure(ctx, o, lanes{{endToEndTests(o)}, {staticBusybox(o)}})
}

func endToEndTests(o Options) cache.Artifact {
	dir := filepath.Join(o.Source, testsModule)
	return cache.Artifact{
		Name:    "e2e",
		Title:   "build the end-to-end tests of Kubernetes: minutes if Go has nothing of them cached",
		Outputs: []string{"bin/" + E2ETest, "bin/" + Ginkgo, "bin/" + issue74839, porterFiles},
		Inputs:  func() ([]string, error) { return moduleInputs(dir) },
		Build: func(ctx context.Context, into string) error {
			bin := filepath.Join(into, "bin")
			version, err := versionFlags(dir)
			if err != nil {
				return err
			}
			log, env := o.Cache.Log("e2e"), []string{"CGO_ENABLED=0"}
			if err := buildPrograms(ctx, o, "e2e", dir, bin, "tool"); err != nil {
				return err
			}
			args := append(append([]string{"test", "-c"}, CompilerFlags...), linkerFlags+version, "-o", filepath.Join(bin, E2ETest), "k8s.io/kubernetes/test/e2e")
			err = run(ctx, log, dir, env, "go", args...)
			if err != nil {
				return err
			}
			return copyPorterFiles(ctx, dir, filepath.Join(into, porterFiles))
		},
	}
}

func copyPorterFiles(ctx context.Context, module, into string) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = module
	sources, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find the sources of Kubernetes: %w", err)
	}
	if err := os.Mkdir(into, 0o755); err != nil {
		return fmt.Errorf("make a directory of agnhost's files: %w", err)
	}
	for _, name := range porterNames {
		content, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(sources)), porterSource, name))
		if err != nil {
			return fmt.Errorf("read a file of agnhost's: %w", err)
		}
		if err := os.WriteFile(filepath.Join(into, name), content, 0o644); err != nil {
			return fmt.Errorf("copy a file of agnhost's: %w", err)
		}
	}
	return nil
}

// staticBusybox is busybox of Debian's package; tests call it as wget.
func staticBusybox(o Options) cache.Artifact {
	return fromPackage(o, "busybox", "busybox-static", map[string]string{"busybox": "usr/bin/busybox"})
}

// TestImages makes the referenced images that the end-to-end tests of the network use, and skips the others. It writes layers to
// the directory into. The images stand in for the published ones: they contain the programs that tests run, on Debian instead of
// the original bases.
func TestImages(dir cache.Dir, into string, references []string) ([]*images.Image, error) {
	var wanted []imageSpec
	for _, reference := range references {
		if w, ours := testImage(dir, reference); ours {
			wanted = append(wanted, w)
		}
	}
	return makeImages(into, wanted)
}

func testImage(dir cache.Dir, reference string) (w imageSpec, ours bool) {
	if reference == config.PauseImage || !strings.HasPrefix(reference, "registry.k8s.io/") { // tests expect images of other registries to be missing
		return imageSpec{}, false
	}
	w = agnhostImage(dir)
	w.reference = reference
	w.entries = append(w.entries, archive.Entry{Path: "/usr/bin/busybox", Source: dir.Path("busybox")}, archive.Entry{Path: "/usr/bin/wget", Link: "busybox"})
	name, _, _ := strings.Cut(path.Base(reference), ":")
	switch name {
	case "agnhost": // the nodes' agnhost image lacks these files
		w.entries = append(w.entries, archive.Entry{Path: "/coredns", Source: filepath.Join(dir.Bin(), "coredns")})
		for _, name := range porterNames {
			w.entries = append(w.entries, archive.Entry{Path: "/" + name, Source: dir.Path(filepath.Join(porterFiles, name))})
		}
	case "busybox", "distroless-iptables", "glibc-dns-testing":
		w.config.Entrypoint, w.config.Cmd = nil, []string{"sh"}
	case "nginx":
		w.config.Cmd = []string{"netexec", "--http-port=80"}
	case "pause":
		w.config.Cmd = []string{"pause"}
	case issue74839:
		w.entries = []archive.Entry{{Path: "/" + issue74839, Source: filepath.Join(dir.Bin(), issue74839)}}
		w.config = v1.Config{Entrypoint: []string{"/" + issue74839}}
	default:
		return imageSpec{}, false
	}
	return w, true
}
