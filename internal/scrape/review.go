// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedauthenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

const (
	// reviewTimeout bounds the reviews of one request.
	reviewTimeout = 5 * time.Second
	// reviewsPerSecond and reviewBurst bound what requests with unknown tokens cost the API server.
	reviewsPerSecond = 5
	reviewBurst      = 10
	// decisionAge is how long a decision is used again.
	decisionAge = time.Minute
	// maxDecisions bounds the memory of decisions.
	maxDecisions = 128
)

// reviewer asks the API server whether the user of a token may get the metrics. controller-runtime's filter does the same with the libraries of
// the API server, which would triple the size of every process's dependencies.
type reviewer struct {
	tokens typedauthenticationv1.TokenReviewInterface
	access typedauthorizationv1.SubjectAccessReviewInterface
	now    func() time.Time

	mu        sync.Mutex
	decisions map[[sha256.Size]byte]decision
}

type decision struct {
	err   error // nil if the request is allowed
	until time.Time
}

var (
	errUnauthenticated = errors.New("the token is invalid or absent: send the token of a ServiceAccount in the header Authorization")
	errForbidden       = errors.New("the user may not `get` the URL /metrics: bind a ClusterRole with this nonResourceURL")
)

// authorized serves GET of Path to users that may get it, and nothing else.
func (r *reviewer) authorized(metrics http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != Path || req.Method != http.MethodGet {
			http.NotFound(w, req)
			return
		}
		token, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
		switch err := r.decide(req.Context(), strings.TrimSpace(token)); {
		case err == nil:
			metrics.ServeHTTP(w, req)
		case errors.Is(err, errUnauthenticated):
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case errors.Is(err, errForbidden):
			http.Error(w, err.Error(), http.StatusForbidden)
		default:
			http.Error(w, "the API server cannot review the token: "+err.Error(), http.StatusServiceUnavailable)
		}
	})
}

// decide returns nil if the user of the token may get the metrics. It uses decisions again for decisionAge.
func (r *reviewer) decide(ctx context.Context, token string) error {
	if token == "" {
		return errUnauthenticated
	}
	key := sha256.Sum256([]byte(token))
	r.mu.Lock()
	known, is := r.decisions[key]
	r.mu.Unlock()
	if is && r.now().Before(known.until) {
		return known.err
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	err := r.review(ctx, token)
	if err != nil && !errors.Is(err, errUnauthenticated) && !errors.Is(err, errForbidden) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.decisions == nil || len(r.decisions) >= maxDecisions {
		r.decisions = map[[sha256.Size]byte]decision{}
	}
	r.decisions[key] = decision{err: err, until: r.now().Add(decisionAge)}
	return err
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
