// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/serving/httpserver"
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
		{new(v1alpha1.MetricsAccess("")), http.StatusOK}, // an OVNCluster without the field
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
		case "prometheus", "rotated", "somebody":
			user := strings.ReplaceAll(review.Spec.Token, "rotated", "prometheus")
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: user}}
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		to := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && to.Path == "/metrics" && to.Verb == "get"
		return true, review, nil
	})
	return newReviewer(client.AuthenticationV1().TokenReviews(), client.AuthorizationV1().SubjectAccessReviews(), time.Now)
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

var (
	scraper  = netip.MustParseAddr("10.16.0.2")
	stranger = netip.MustParseAddr("10.16.0.66")
)

func TestDecisionsAreUsedAgain(t *testing.T) {
	asked := 0
	r := reviews(t, &asked)
	now := time.Now()
	r.now = func() time.Time { return now }
	for range 5 {
		if err := r.decide(t.Context(), scraper, "prometheus"); err != nil {
			t.Fatal(err)
		}
		if err := r.decide(t.Context(), scraper, "stolen"); !errors.Is(err, errUnauthenticated) {
			t.Fatal(err)
		}
	}
	if asked != 2 {
		t.Errorf("%d reviews of two tokens", asked)
	}
	now = now.Add(decisionAge)
	if err := r.decide(t.Context(), scraper, "prometheus"); err != nil || asked != 3 {
		t.Errorf("after decisionAge: %v, %d reviews", err, asked)
	}
}

// TestRandomTokensDoNotStopAnAllowedToken sends many invalid tokens from one source and from many, as pods can.
func TestRandomTokensDoNotStopAnAllowedToken(t *testing.T) {
	for name, source := range map[string]func(int) netip.Addr{
		"of one source":   func(int) netip.Addr { return stranger },
		"of many sources": func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 17, byte(i >> 8), byte(i)}) },
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			r := reviews(t, &asked)
			now := time.Now()
			r.now = func() time.Time { return now }
			if err := r.decide(t.Context(), scraper, "prometheus"); err != nil {
				t.Fatal(err)
			}
			r.forOthers.SetLimit(0) // no wait in this test
			asked = 0
			for i := range 3 * maxDecisions {
				_ = r.decide(t.Context(), source(i), fmt.Sprint("guess ", i))
			}
			if asked > allBurst {
				t.Errorf("%d reviews of random tokens", asked)
			}
			if err := r.decide(t.Context(), scraper, "prometheus"); err != nil || asked > allBurst {
				t.Errorf("the allowed token after the random ones: %v, %d reviews", err, asked)
			}
			now = now.Add(decisionAge)
			if err := r.decide(t.Context(), scraper, "prometheus"); err != nil {
				t.Errorf("the next review of the allowed token, without a review left for new tokens: %v", err)
			}
		})
	}
}

func TestASourceWithRandomTokensDoesNotDelayNewTokensOfOthers(t *testing.T) {
	asked := 0
	r := reviews(t, &asked)
	for i := range 100 {
		_ = r.decide(t.Context(), stranger, fmt.Sprint("guess ", i))
	}
	if err := r.decide(t.Context(), stranger, "guess"); !errors.Is(err, errTooMany) || asked > newBurst+1 {
		t.Errorf("%v, after %d reviews", err, asked)
	}
	if err := r.decide(t.Context(), scraper, "prometheus"); err != nil {
		t.Error(err)
	}
}

// TestManySourcesDoNotDelayANewTokenOfAKnownSource: bound tokens are replaced while Prometheus runs, and the API server must review the new one.
func TestManySourcesDoNotDelayANewTokenOfAKnownSource(t *testing.T) {
	asked := 0
	r := reviews(t, &asked)
	now := time.Now()
	r.now = func() time.Time { return now }
	if err := r.decide(t.Context(), scraper, "prometheus"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	r.forOthers.SetLimit(0) // the flood uses all its reviews, and none of its requests waits in this test
	r.forKnown.SetLimit(0)  // the known source does not wait either
	for i := range 2 * maxSourcesOfTest {
		_ = r.decide(t.Context(), netip.AddrFrom4([4]byte{10, byte(17 + i>>16), byte(i >> 8), byte(i)}), fmt.Sprint("guess ", i))
	}
	if asked > 1+allBurst || len(r.knownSources) != 1 {
		t.Errorf("%d reviews, %d known sources after a flood without a valid token", asked, len(r.knownSources))
	}
	if err := r.decide(t.Context(), scraper, "rotated"); err != nil {
		t.Errorf("the new token of a source that reads metrics: %v", err)
	}
	now = now.Add(knownAge)
	if err := r.decide(t.Context(), scraper, "stolen"); !errors.Is(err, errTooMany) {
		t.Errorf("a source that has read no metrics for long has reviews of its own: %v", err)
	}
}

// maxSourcesOfTest is above the number of sources whose rates are recorded (httpserver.Rates).
const maxSourcesOfTest = 4096

func TestKnownSourcesAreBounded(t *testing.T) {
	asked := 0
	r := reviews(t, &asked)
	now := time.Now()
	r.now = func() time.Time { return now }
	for i := range byte(2 * maxKnown) {
		now = now.Add(time.Millisecond)
		r.remember(netip.AddrFrom4([4]byte{10, 17, 0, i}))
		r.remember(scraper)
	}
	if len(r.knownSources) > maxKnown || !r.isKnown(scraper) {
		t.Errorf("%d known sources; the one with the last request is known: %t", len(r.knownSources), r.isKnown(scraper))
	}
}

func TestListsOfDecisionsAreBounded(t *testing.T) {
	asked := 0
	r := reviews(t, &asked)
	r.forOthers.SetLimit(rate.Inf)
	r.sources = httpserver.Rates{PerSecond: rate.Inf}
	for i := range 3 * maxDecisions {
		_ = r.decide(t.Context(), stranger, fmt.Sprint("guess ", i))
		r.record(tokenKey{1, byte(i), byte(i >> 8)}, decision{at: time.Now().Add(time.Duration(i)), until: time.Now()})
	}
	if len(r.refused) > maxDecisions || len(r.allowed) > maxDecisions {
		t.Errorf("%d refused and %d allowed tokens are kept", len(r.refused), len(r.allowed))
	}
	if _, is := r.allowed[tokenKey{1, 0, 0}]; is {
		t.Error("the oldest decision stays")
	}
}

func TestAnAllowedTokenStaysAllowedForAWhileWithoutTheAPIServer(t *testing.T) {
	asked := 0
	r := reviews(t, &asked)
	now := time.Now()
	r.now = func() time.Time { return now }
	key := tokenKey(sha256.Sum256([]byte("unreachable")))
	r.record(key, decision{at: now, until: now})
	for _, step := range []struct {
		after   time.Duration
		allowed bool
		reviews int
	}{
		{0, true, 1}, {time.Second, true, 0}, {retryAge, true, 1}, {staleAge, false, 1},
	} {
		asked = 0
		now = now.Add(step.after)
		if err := r.decide(t.Context(), scraper, "unreachable"); (err == nil) != step.allowed || asked != step.reviews {
			t.Errorf("after another %s: %v, %d reviews; want allowed %t with %d", step.after, err, asked, step.allowed, step.reviews)
		}
	}
	r.record(tokenKey(sha256.Sum256([]byte("stolen"))), decision{at: now, until: now})
	if err := r.decide(t.Context(), scraper, "stolen"); !errors.Is(err, errUnauthenticated) || len(r.allowed) > 1 {
		t.Errorf("a token that was revoked: %v", err)
	}
}
