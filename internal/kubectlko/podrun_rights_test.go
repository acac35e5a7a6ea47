// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// allow gives a user rights in the whole cluster.
func (w *world) allow(user string, rules ...rbacv1.PolicyRule) {
	w.Helper()
	w.make(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-" + user}, Rules: rules})
	w.make(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + user}, Subjects: []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "test-" + user},
	})
}

func rule(group, resources, verbs string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: strings.Fields(resources), Verbs: strings.Fields(verbs)}
}

// as makes the clients of a run act as a user.
func (n *network) as(user string) {
	n.Helper()
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: n.kubeconfig}
	overrides := &clientcmd.ConfigOverrides{AuthInfo: api.AuthInfo{Impersonate: user, ImpersonateGroups: []string{"system:authenticated"}}}
	must.Succeed(n.world, n.connect(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)))
}

// TestMissingRightsAreListed has a user that may create namespaces, and may not delete them.
func TestMissingRightsAreListed(t *testing.T) {
	n := newNetwork(t)
	n.allow("alice", rule("", "namespaces", "create"), rule("", "pods pods/exec", "create list"), rule("kubeovn.io", "vpcs", "*"), rule("kubeovn.io", "subnets", "create get list"))
	n.as("alice")
	err := n.run(t.Context())
	if err == nil {
		t.Fatal("no error")
	}
	const want = "get namespaces, delete namespaces, deletecollection pods in the namespaces of the test, get services in namespace default, delete subnets.kubeovn.io, " +
		"create services in the namespaces of the test, create networkpolicies.networking.k8s.io in the namespaces of the test, delete networkpolicies.networking.k8s.io in the namespaces of the test"
	if !strings.HasSuffix(err.Error(), ": "+want) || !n.isGone() {
		t.Errorf("objects are deleted: %t; the error is %v", n.isGone(), err)
	}
}

// TestAMissingRightEndsWaits: each wait would take an hour, or as long as the test.
func TestAMissingRightEndsWaits(t *testing.T) {
	n := newNetwork(t)
	n.startTime = time.Hour
	n.allow("alice", rule("", "namespaces pods services", "create delete deletecollection"), rule("", "services", "get"), rule("kubeovn.io", "vpcs subnets", "create delete list"))
	must.Succeed(t, n.findHosts(t.Context()))
	n.as("alice")
	for name, wait := range map[string]func(context.Context) error{"create": n.create, "await": n.await, "remove": n.remove} {
		if err := wait(t.Context()); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAServiceAccountWithoutRights: the name of this user is similar to the text about a ServiceAccount that does not exist yet.
func TestAServiceAccountWithoutRights(t *testing.T) {
	n := newNetwork(t)
	n.as("system:serviceaccount:kube-system:default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
	if err := n.createPod(t.Context(), pod); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
}
