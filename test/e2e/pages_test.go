// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Placeholders of the pages: the image in a registry, and the OVNCluster.
const (
	imageOfPages      = "registry.example.com/kiln:v0.1.0"
	ovnclusterOfPages = "config/samples/ovncluster.yaml"
)

// section is a section of a page: a file of the repository, and a heading.
type section struct{ page, heading string }

var (
	readmeSection  = section{"README.md", "## Install"}
	pushSection    = section{"docs/operations/image.md", "## Build and push"}
	oneFileSection = section{"docs/operations/packages.md", "## One file"}
	removeSection  = section{"docs/operations/install.md", "## Remove"}
)

// followed is a way by the commands of the documentation, which a user runs in the repository. The image comes from a registry on the host: nodes have
// no image of Kiln, and pull it.
func followed(apply, upgrade func(ctx context.Context, image string)) way {
	name := topology.Registry().String() + "/kiln"
	return way{
		images:         [2]string{name + ":v0.1.0", name + ":v0.2.0"},
		withOVNCluster: true,
		apply: func(ctx context.Context, image string) {
			GinkgoHelper()
			serveImages()
			apply(ctx, image)
		},
		publish: func(ctx context.Context, image string) { follow(ctx, pushSection, image) },
		upgrade: upgrade,
		remove: func(ctx context.Context) {
			GinkgoHelper()
			Expect(run(ctx, "make undeploy")).NotTo(Succeed(), "the OVNCluster exists")
			follow(ctx, removeSection, "")
		},
		uninstall: func(ctx context.Context) { // remove has removed everything: these are the targets for the definitions alone
			GinkgoHelper()
			Expect(run(ctx, "make install\nkubectl wait --for=condition=Established crd/ovnclusters.kubeovn.io --timeout=30s\nmake uninstall")).To(Succeed())
		},
	}
}

func followReadme() way {
	return followed(
		func(ctx context.Context, image string) { follow(ctx, readmeSection, image) },
		func(ctx context.Context, image string) {
			GinkgoHelper()
			Expect(run(ctx, "make deploy IMAGE="+image)).To(Succeed())
		})
}

func followOneFile() way {
	oneFile := func(ctx context.Context, image string) { follow(ctx, oneFileSection, image) }
	return followed(func(ctx context.Context, image string) {
		follow(ctx, pushSection, image)
		oneFile(ctx, image)
	}, oneFile)
}

// follow runs the commands of a section: its first block of shell commands, with the lab's values for the placeholders.
func follow(ctx context.Context, s section, image string) {
	GinkgoHelper()
	page, err := os.ReadFile(filepath.Join(root, s.page))
	Expect(err).NotTo(HaveOccurred())
	_, text, found := strings.Cut(string(page), "\n"+s.heading+"\n")
	Expect(found).To(BeTrue(), "%s has no section %q", s.page, s.heading)
	text, _, _ = strings.Cut(text, "\n## ")
	_, text, found = strings.Cut(text, "\n```sh\n")
	Expect(found).To(BeTrue(), "the section %q of %s has no commands", s.heading, s.page)
	text, _, _ = strings.Cut(text, "\n```\n")
	if image != "" {
		Expect(text).To(ContainSubstring(imageOfPages))
	}
	text = strings.NewReplacer(imageOfPages, image, ovnclusterOfPages, ovnclusterFile()).Replace(text)
	Expect(text).NotTo(ContainSubstring("example"), "the section %q of %s has placeholders that the test does not know", s.heading, s.page)
	Expect(run(ctx, text)).To(Succeed())
}

// root is the root directory of the repository.
const root = "../.."

// run runs shell commands in the repository. It stops at the first one that fails.
func run(ctx context.Context, commands string) error {
	kubectl, err := prepared.File("bin/kubectl")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	// A shell, because the commands are those that the page prints for a user's shell.
	cmd := osexec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = root, GinkgoWriter, GinkgoWriter, time.Second
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "MAKE") && name != "MFLAGS" { // of `make test-install`
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "KUBECONFIG="+suite.Lab.Kubeconfig(), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	return cmd.Run()
}

// ovnclusterFile writes the lab's OVNCluster to a file, and returns its path.
func ovnclusterFile() string {
	GinkgoHelper()
	oc := v1alpha1.OVNCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "OVNCluster"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName},
		Spec:       asInstalled(),
	}
	if suite.Lab.KubeProxy() {
		oc.Spec.APIServer = nil
	}
	text, err := yaml.Marshal(oc)
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(GinkgoT().TempDir(), "ovncluster.yaml")
	Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
	return path
}

// images is the server of serveImages.
var images *http.Server

// serveImages serves a registry for the lab's nodes until the suite ends.
func serveImages() {
	GinkgoHelper()
	if images != nil {
		return
	}
	listener, err := net.Listen("tcp", topology.Registry().String())
	Expect(err).NotTo(HaveOccurred(), "commands of pages run on the host, so they need a lab with the userspace datapath")
	images = &http.Server{
		Handler:           registry.New(registry.Logger(log.New(GinkgoWriter, "registry: ", log.LstdFlags))),
		ReadHeaderTimeout: time.Minute,
	}
	go func() {
		if err := images.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			GinkgoWriter.Println("registry:", err)
		}
	}()
}

var _ = AfterSuite(func() {
	if images != nil {
		Expect(images.Close()).To(Succeed())
	}
})
