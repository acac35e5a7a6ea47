// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/config"
)

func TestTheTestsAreOfTheVersionThatTheLabRuns(t *testing.T) {
	version := func(module string) string {
		flags, err := versionFlags(filepath.Join("..", "programs", module))
		if err != nil {
			t.Fatal(err)
		}
		return flags
	}
	if lab, tests := version("kubernetes"), version("e2e"); lab != tests || lab == "" {
		t.Errorf("the lab's programs are linked with %q, the tests with %q", lab, tests)
	}
}

func TestImagesOfTheTestsKeepTheirNamesAndOthersAreLeftOut(t *testing.T) {
	const registry = "registry.k8s.io/e2e-test-images/"
	var made []string
	for _, reference := range []string{
		config.AgnhostImage, config.PauseImage, "registry.k8s.io/pause:3.10.2", registry + "agnhost:2.55", registry + "busybox:1.37.0-2",
		registry + "nginx:1.27.0-2", registry + "volume/nfs:1.6.0", "gcr.io/k8s-authenticated-test/agnhost:2.6", registry + "glibc-dns-testing:2.1.1",
	} {
		w, ours := testImage(cache.Dir("/cache"), reference)
		if !ours {
			continue
		}
		if w.reference != reference {
			t.Errorf("the image of %s is called %s", reference, w.reference)
		}
		made = append(made, reference)
	}
	want := []string{
		config.AgnhostImage,
		"registry.k8s.io/pause:3.10.2", registry + "agnhost:2.55", registry + "busybox:1.37.0-2", registry + "nginx:1.27.0-2",
		registry + "glibc-dns-testing:2.1.1",
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Error(diff)
	}
}
