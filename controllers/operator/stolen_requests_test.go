// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// methods maps the verbs that the test tries to HTTP methods. get and list are for Secrets, and get for subresources that
// connect by GET.
var methods = map[string]string{
	"create": http.MethodPost, "update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete,
	"deletecollection": http.MethodDelete, "get": http.MethodGet, "list": http.MethodGet,
}

// connects lists the subresources by which a request reaches a program, with GET too.
var connects = []string{"pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy"}

// target is a resource or a subresource, such as `pods/status`, and the namespaces of its objects.
type target struct {
	schema.GroupVersion
	resource   string
	namespaces []string
	verbs      []string
}

// attempt is a request.
type attempt struct {
	target
	verb, namespace, name string
}

// String returns the resource in the form of grants.
func (a target) String() string {
	resource, subresource, isSub := strings.Cut(a.resource, "/")
	if a.Group != "" {
		resource += "." + a.Group
	}
	if isSub {
		resource += "/" + subresource
	}
	return resource
}

func (a attempt) path() string {
	parts := []string{"/apis", a.Group, a.Version}
	if a.Group == "" {
		parts = []string{"/api", a.Version}
	}
	if a.namespace != "" {
		parts = append(parts, "namespaces", a.namespace)
	}
	resource, subresource, isSub := strings.Cut(a.resource, "/")
	parts = append(parts, resource)
	if a.name != "" {
		parts = append(parts, a.name)
	}
	if isSub {
		parts = append(parts, subresource)
	}
	return strings.Join(parts, "/")
}

// covers reports whether the grant is for the attempt.
func (g grant) covers(a attempt) bool {
	fields := strings.Fields(g.right)
	covered := slices.Contains(strings.Split(fields[0], ","), a.verb) && fields[1] == a.String()
	for _, field := range fields[2:] {
		if field == "@own" {
			covered = covered && a.namespace == testNamespace
		} else {
			covered = covered && a.name == field
		}
	}
	return covered
}

// served returns every resource of the API server with its write verbs.
func (w *tenancy) served(t *testing.T) []target {
	t.Helper()
	c, err := kubernetes.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := c.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var all []target
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			found := target{GroupVersion: gv, resource: r.Name, namespaces: []string{""}}
			if r.Namespaced {
				found.namespaces = []string{testNamespace, w.namespace}
			}
			for _, verb := range r.Verbs {
				reads := verb == "get" || verb == "list" || verb == "watch"
				if !reads || methods[verb] != "" && (found.String() == "secrets" || slices.Contains(connects, r.Name)) {
					found.verbs = append(found.verbs, verb)
				}
			}
			if !slices.ContainsFunc(all, func(other target) bool { return other.String() == found.String() }) { // versions have the same rights
				all = append(all, found)
			}
		}
	}
	return all
}

// thief has the token of an account, and the grants that the account needs.
type thief struct {
	*tenancy
	client kubernetes.Interface
	grants []grant
	used   map[string]bool
}

// needs reports whether a grant covers the attempt.
func (s *thief) needs(a attempt) bool {
	needed := false
	for _, g := range s.grants {
		if g.covers(a) {
			needed, s.used[g.right] = true, true
		}
	}
	return needed
}

// stolen sends every request with the token of an account, on objects that do not exist and on the objects that its roles
// name.
func (w *tenancy) stolen(t *testing.T, account string, served []target, grants []grant) {
	c, err := kubernetes.NewForConfig(w.tokens[account])
	if err != nil {
		t.Fatal(err)
	}
	s := &thief{tenancy: w, client: c, grants: grants, used: map[string]bool{}}
	requests := 0
	unserved, names := s.held(t, served)
	for _, target := range slices.Concat(served, unserved) {
		for _, a := range target.attempts(names[target.String()]) {
			requests++
			err := a.request(t, c.Discovery().RESTClient())
			refused := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot "+a.verb+" resource")
			switch needed := s.needs(a); {
			case refused && needed:
				t.Errorf("it may not %s %s, which it needs: %v", a.verb, a.path(), err)
			case !refused && !needed:
				t.Errorf("it may %s %s, which it does not need: %v", a.verb, a.path(), err)
			}
		}
	}
	for _, g := range grants {
		if !s.used[g.right] {
			t.Errorf("no role gives it %q", g.right)
		}
	}
	t.Logf("%d requests", requests)
}

// held returns the resources of the account's roles that are not served here, and the names of objects in its roles, by resource. It checks
// verbs that are not requests, such as approve.
func (s *thief) held(t *testing.T, served []target) (unserved []target, names map[string][]string) {
	t.Helper()
	review, err := s.client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: testNamespace},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range served {
		known[s.String()] = true
	}
	names = map[string][]string{}
	for _, rule := range review.Status.ResourceRules {
		if slices.Contains(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs), "*") {
			t.Errorf("a role has the wildcard %v", rule)
		}
		for _, resource := range rule.Resources {
			found := target{
				GroupVersion: schema.GroupVersion{Group: rule.APIGroups[0], Version: "v1"}, resource: resource,
				namespaces: []string{"", testNamespace, s.namespace}, verbs: []string{"create", "update", "patch", "delete", "deletecollection"},
			}
			names[found.String()] = append(names[found.String()], rule.ResourceNames...)
			if !known[found.String()] {
				known[found.String()] = true
				unserved = append(unserved, found)
			}
			s.holds(t, found, rule)
		}
	}
	return unserved, names
}

func (s *thief) holds(t *testing.T, of target, rule authorizationv1.ResourceRule) {
	t.Helper()
	for _, verb := range rule.Verbs {
		if methods[verb] != "" || verb == "watch" {
			continue
		}
		a := attempt{target: of, verb: verb, namespace: testNamespace}
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, a.name = range names {
			if !s.needs(a) {
				t.Errorf("it holds %s %s %s, which it does not need", verb, a, a.name)
			}
		}
	}
}

// attempts returns a target's requests.
func (a target) attempts(names []string) []attempt {
	var all []attempt
	_, _, isSub := strings.Cut(a.resource, "/")
	for _, verb := range a.verbs {
		for _, namespace := range a.namespaces {
			switch {
			case isSub && verb == "deletecollection":
			case !isSub && (verb == "create" || verb == "deletecollection" || verb == "list"):
				all = append(all, attempt{a, verb, namespace, ""})
			default:
				for _, name := range append([]string{"stolen"}, names...) {
					all = append(all, attempt{a, verb, namespace, name})
				}
			}
		}
	}
	return all
}

// request sends the request as a dry run.
func (a attempt) request(t *testing.T, c rest.Interface) error {
	t.Helper()
	r := c.Verb(methods[a.verb]).AbsPath(a.path()).Param("dryRun", metav1.DryRunAll)
	switch a.verb {
	case "patch":
		r = r.SetHeader("Content-Type", string(types.MergePatchType)).Body([]byte("{}"))
	case "create", "update":
		r = r.SetHeader("Content-Type", "application/json").Body([]byte("{}"))
	}
	return r.Do(t.Context()).Error()
}
