// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

var figures = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "figure 1") })

func request(handler http.Handler, method, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, http.NoBody)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func TestPlainMetricsAreServedWhileTheAccessIsOpen(t *testing.T) {
	a := &Access{Port: 0}
	handler := a.Handler(figures)
	for _, step := range []struct {
		access *v1alpha1.MetricsAccess
		want   int
	}{
		{nil, http.StatusServiceUnavailable}, {new(v1alpha1.MetricsOpen), http.StatusOK}, {new(v1alpha1.MetricsAuthorized), http.StatusForbidden},
		{new(v1alpha1.MetricsAccess("")), http.StatusOK}, // an OVNCluster of an earlier version
	} {
		a.access.Store(step.access)
		if got := request(handler, http.MethodGet, Path, ""); got.Code != step.want || got.Code == http.StatusOK && got.Body.String() != "figure 1\n" {
			t.Errorf("with the access %v: %d %s", step.access, got.Code, got.Body)
		}
	}
}

// reviews is an API server that knows some tokens, and users that may get the metrics.
func reviews(t *testing.T, asked *int) *reviewer {
	t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*asked++
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		switch review.Spec.Token {
		case "unreachable":
			return true, nil, errors.New("no connection")
		case "prometheus", "somebody":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: review.Spec.Token}}
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		to := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && to.Path == "/metrics" && to.Verb == "get"
		return true, review, nil
	})
	return &reviewer{tokens: client.AuthenticationV1().TokenReviews(), access: client.AuthorizationV1().SubjectAccessReviews(), now: time.Now}
}

func TestOnlyUsersWithTheRightGetMetrics(t *testing.T) {
	asked := 0
	handler := reviews(t, &asked).authorized(figures)
	for _, tt := range []struct {
		name, method, path, token string
		want                      int
	}{
		{"a user with the right", http.MethodGet, Path, "prometheus", http.StatusOK},
		{"a user without the right", http.MethodGet, Path, "somebody", http.StatusForbidden},
		{"an unknown token", http.MethodGet, Path, "stolen", http.StatusUnauthorized},
		{"no token", http.MethodGet, Path, "", http.StatusUnauthorized},
		{"while the API server does not answer", http.MethodGet, Path, "unreachable", http.StatusServiceUnavailable},
		{"another path", http.MethodGet, "/debug/pprof/", "prometheus", http.StatusNotFound},
		{"another method", http.MethodPost, Path, "prometheus", http.StatusNotFound},
	} {
		got := request(handler, tt.method, tt.path, tt.token)
		if got.Code != tt.want || (tt.want != http.StatusOK && strings.Contains(got.Body.String(), "figure")) {
			t.Errorf("%s: %d %s", tt.name, got.Code, got.Body)
		}
	}
}

func TestDecisionsAreUsedAgain(t *testing.T) {
	asked := 0
	r := reviews(t, &asked)
	now := time.Now()
	r.now = func() time.Time { return now }
	for range 5 {
		if err := r.decide(t.Context(), "prometheus"); err != nil {
			t.Fatal(err)
		}
		if err := r.decide(t.Context(), "stolen"); !errors.Is(err, errUnauthenticated) {
			t.Fatal(err)
		}
	}
	if asked != 2 {
		t.Errorf("%d reviews of two tokens", asked)
	}
	now = now.Add(decisionAge)
	if err := r.decide(t.Context(), "prometheus"); err != nil || asked != 3 {
		t.Errorf("after decisionAge: %v, %d reviews", err, asked)
	}
	for i := range 3 * maxDecisions {
		_ = r.decide(t.Context(), fmt.Sprint("guess ", i))
	}
	if len(r.decisions) > maxDecisions {
		t.Errorf("%d decisions are kept", len(r.decisions))
	}
}
