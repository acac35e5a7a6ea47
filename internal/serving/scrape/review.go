// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedauthenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
)

const (
	// reviewTimeout bounds the reviews of one request.
	reviewTimeout = 5 * time.Second
	// newPerSecond and newBurst bound what requests with new tokens cost the API server: newPerSecond and newBurst for each source,
	// allPerSecond and allBurst for all known sources together, and the same for all others. Tokens that were allowed before are not counted.
	newPerSecond = 1
	newBurst     = 5
	allPerSecond = 5
	allBurst     = 10
	// knownAge is how long a source is known after an allowed request. Bound tokens of ServiceAccounts are replaced after about an hour at the latest.
	knownAge = 2 * time.Hour
	// maxKnown bounds the number of known sources.
	maxKnown = 64
	// decisionAge is how long a decision is used again.
	decisionAge = time.Minute
	// staleAge is how long an allowed token stays allowed while the API server cannot review it again. It is asked every retryAge.
	staleAge = 10 * time.Minute
	retryAge = 10 * time.Second
	// maxDecisions bounds each list of decisions.
	maxDecisions = 128
)

// reviewer asks the API server whether the user of a token may get the metrics. controller-runtime's filter does the same with the libraries of
// the API server, which would triple the size of every process's dependencies.
type reviewer struct {
	tokens typedauthenticationv1.TokenReviewInterface
	access typedauthorizationv1.SubjectAccessReviewInterface
	now    func() time.Time

	sources httpserver.Rates
	// forKnown and forOthers are the reviews of new tokens of all sources together: a flood from new sources never delays a new token of a source that
	// reads metrics.
	forKnown, forOthers *rate.Limiter

	mu sync.Mutex
	// allowed and refused are separate, so that invalid tokens never displace valid ones.
	allowed, refused map[tokenKey]decision
	// knownSources have had an allowed request, the last one at this time.
	knownSources map[netip.Addr]time.Time
}

// tokenKey is the hash of a token.
type tokenKey [sha256.Size]byte

type decision struct {
	err error // nil if the request is allowed
	// until when the decision is used without another review. The API server made it at the time at.
	until, at time.Time
}

func newReviewer(tokens typedauthenticationv1.TokenReviewInterface, access typedauthorizationv1.SubjectAccessReviewInterface, now func() time.Time) *reviewer {
	return &reviewer{
		tokens: tokens, access: access, now: now,
		sources:  httpserver.Rates{PerSecond: newPerSecond, Burst: newBurst},
		forKnown: rate.NewLimiter(allPerSecond, allBurst), forOthers: rate.NewLimiter(allPerSecond, allBurst),
		allowed: map[tokenKey]decision{}, refused: map[tokenKey]decision{}, knownSources: map[netip.Addr]time.Time{},
	}
}

var (
	errUnauthenticated = errors.New("the token is invalid or absent: send the token of a ServiceAccount in the header Authorization")
	errForbidden       = errors.New("the user may not `get` the URL /metrics: bind a ClusterRole with this nonResourceURL")
	errTooMany         = errors.New("too many new tokens: try again in a few seconds")
)

// authorized serves GET of Path to users that may get it, and nothing else.
func (r *reviewer) authorized(metrics http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != Path || req.Method != http.MethodGet {
			http.NotFound(w, req)
			return
		}
		token, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
		switch err := r.decide(req.Context(), httpserver.Source(req), strings.TrimSpace(token)); {
		case err == nil:
			metrics.ServeHTTP(w, req)
		case errors.Is(err, errUnauthenticated):
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case errors.Is(err, errForbidden):
			http.Error(w, err.Error(), http.StatusForbidden)
		case errors.Is(err, errTooMany):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		default:
			http.Error(w, "the API server cannot review the token: "+err.Error(), http.StatusServiceUnavailable)
		}
	})
}

// decide returns nil if the user of the token may get the metrics. The source of an allowed request is known from then on.
func (r *reviewer) decide(ctx context.Context, source netip.Addr, token string) error {
	if token == "" {
		return errUnauthenticated
	}
	err := r.judge(ctx, source, token)
	if err == nil {
		r.remember(source)
	}
	return err
}

// judge decides about a token. It uses decisions again for decisionAge.
func (r *reviewer) judge(ctx context.Context, source netip.Addr, token string) error {
	key, now := tokenKey(sha256.Sum256([]byte(token))), r.now()
	known, is := r.known(key, now)
	if is && now.Before(known.until) {
		return known.err
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	wasAllowed := is && known.err == nil
	if !wasAllowed {
		if !r.sources.Allow(source, now) {
			return errTooMany
		}
		budget := r.forOthers
		if r.isKnown(source) {
			budget = r.forKnown
		}
		if err := budget.Wait(ctx); err != nil {
			return errTooMany
		}
	}
	err := r.review(ctx, token)
	made := decision{err: err, until: now.Add(decisionAge), at: now}
	if err != nil && !errors.Is(err, errUnauthenticated) && !errors.Is(err, errForbidden) {
		if !wasAllowed {
			return err
		}
		made = decision{until: now.Add(retryAge), at: known.at}
	}
	r.record(key, made)
	return made.err
}

// known returns the recorded decision about a token, unless it is too old to matter.
func (r *reviewer) known(key tokenKey, now time.Time) (decision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, is := r.allowed[key]; is && now.Before(d.at.Add(staleAge)) {
		return d, true
	}
	d, is := r.refused[key]
	return d, is
}

// record records a decision. A full list of refused tokens is emptied; the list of allowed tokens loses the oldest decision.
func (r *reviewer) record(key tokenKey, d decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.allowed, key)
	delete(r.refused, key)
	if d.err != nil {
		if len(r.refused) >= maxDecisions {
			clear(r.refused)
		}
		r.refused[key] = d
		return
	}
	if len(r.allowed) >= maxDecisions {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(r.allowed)), func(a, b tokenKey) int { return r.allowed[a].at.Compare(r.allowed[b].at) })
		delete(r.allowed, oldest)
	}
	r.allowed[key] = d
}

// isKnown reports whether a source had an allowed request within knownAge.
func (r *reviewer) isKnown(source netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, is := r.knownSources[source]
	return is && r.now().Before(at.Add(knownAge))
}

// remember records the source of an allowed request. A full list loses the source whose last request is the oldest.
func (r *reviewer) remember(source netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, is := r.knownSources[source]; !is && len(r.knownSources) >= maxKnown {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(r.knownSources)), func(a, b netip.Addr) int { return r.knownSources[a].Compare(r.knownSources[b]) })
		delete(r.knownSources, oldest)
	}
	r.knownSources[source] = r.now()
}

func (r *reviewer) review(ctx context.Context, token string) error {
	review, err := r.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("review the token: %w", err)
	}
	if !review.Status.Authenticated {
		return errUnauthenticated
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	access, err := r.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: Path, Verb: "get"},
		User:                  user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("review the access of %s: %w", user.Username, err)
	}
	if !access.Status.Allowed {
		return errForbidden
	}
	return nil
}
