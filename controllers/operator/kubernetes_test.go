// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

func TestOldKubernetes(t *testing.T) {
	for given, want := range map[string]bool{
		"v1.37.1": false, "v1.31.0": false, "v1.31.0-alpha.1": false, "v1.31.2+k3s1": false, "v2.0.0": false, "": false, "unknown": false,
		"v1.30.14": true, "v1.30.4-gke.1348000": true, "v1.30.6+rke2r1": true, "v1.9.0": true,
	} {
		got := oldKubernetes(given)
		if (got != "") != want {
			t.Errorf("%q: %q; want a problem: %v", given, got, want)
		}
		if want && !strings.HasPrefix(got, "Kubernetes "+given+" is too old: upgrade the API servers to 1.31 or newer") {
			t.Errorf("%q: %q", given, got)
		}
	}
}

// TestDefinitionsAreForTheOldestKubernetes finds CEL functions that the API server of minimumKubernetes refuses in new definitions: those
// that its previous version does not have.
func TestDefinitionsAreForTheOldestKubernetes(t *testing.T) {
	newer := regexp.MustCompile(`format\.named|\bsemver\(|isSemver\(|transform(List|Map)|\.fieldSelector\(|lists\.range|\.sort(By)?\(`)
	files, err := filepath.Glob("../../config/crd/bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found := newer.Find(content); found != nil {
			t.Errorf("%s has %q, which Kubernetes %s does not accept", file, found, minimumKubernetes)
		}
	}
}

// oldServer is the transport to an API server that seems older, and that seems to serve no OVNCluster.
type oldServer struct {
	to                 http.RoundTripper
	upgraded, complete atomic.Bool
}

func (s *oldServer) RoundTrip(r *http.Request) (*http.Response, error) {
	discovery := r.URL.Path == "/apis" && !s.complete.Load()
	if discovery {
		r = r.Clone(r.Context())
		r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	}
	answer, err := s.to.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch {
	case r.URL.Path == "/version" && !s.upgraded.Load():
		return answer, replaceBody(answer, func(body map[string]any) { body["gitVersion"] = "v1.30.4+k3s1" })
	case discovery:
		return answer, replaceBody(answer, func(body map[string]any) {
			body["items"] = slices.DeleteFunc(body["items"].([]any), func(group any) bool {
				return group.(map[string]any)["metadata"].(map[string]any)["name"] == v1alpha1.GroupVersion.Group
			})
		})
	case r.URL.Path == "/apis/"+v1alpha1.GroupVersion.String() && !s.complete.Load():
		answer.StatusCode = http.StatusNotFound
	}
	return answer, nil
}

func replaceBody(answer *http.Response, change func(map[string]any)) error {
	defer answer.Body.Close()
	var body map[string]any
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return err
	}
	change(body)
	content, err := json.Marshal(body)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	answer.Header.Del("Content-Length")
	return err
}

// TestAnOldAPIServer starts an operator at an API server that has refused the definition of OVNCluster, that then has it, and that is upgraded.
func TestAnOldAPIServer(t *testing.T) {
	s := newScenario(t)
	g := newG(t)
	g.Expect(s.stopOperator()).To(Succeed())
	own := s.newPod("operator-0", "kiln-operator", "worker-1", "1")
	own.Labels = nil
	g.Expect(s.admin.Create(t.Context(), own)).To(Succeed())
	server, config := &oldServer{}, s.config
	s.config = rest.CopyConfig(config)
	s.config.Wrap(func(to http.RoundTripper) http.RoundTripper { server.to = to; return server })
	t.Cleanup(func() {
		if err := s.stopOperator(); err != nil {
			t.Error(err)
		}
		s.config = config
	})

	s.operator(t)
	g.Eventually(func() []string { return s.operatorEvents(t) }).Should(ContainElement(HavePrefix("Warning KubernetesTooOld: Kubernetes v1.30.4+k3s1 is too old")))

	server.complete.Store(true)
	s.create(t)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("True KubernetesTooOld: Kubernetes v1.30.4+k3s1 is too old: upgrade the API servers to 1.31 or newer"))
	g.Eventually(s.exists(t, &appsv1.StatefulSet{}, render.NorthboundName)).Should(Succeed(), "the operator continues")

	server.upgraded.Store(true)
	s.setNode(t, "worker-1", func(n *corev1.Node) { metav1.SetMetaDataLabel(&n.ObjectMeta, "wake", "up") })
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

func (s *scenario) operatorEvents(t *testing.T) (all []string) {
	var list eventsv1.EventList
	if err := s.admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Pod" && e.Regarding.Name == "operator-0" {
			all = append(all, e.Type+" "+e.Reason+": "+e.Note)
		}
	}
	return all
}
