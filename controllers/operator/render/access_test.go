// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/golden"
)

func TestTheOperatorHasTheRightsThatItGrants(t *testing.T) {
	cluster, own := Grants()
	meta := metav1.ObjectMeta{Name: "kiln-operator-operands", Labels: map[string]string{
		v1alpha1.PartOfLabel: v1alpha1.PartOf, v1alpha1.ComponentLabel: ManagedBy,
	}}
	namespaced := meta
	namespaced.Namespace = "kube-system"
	head := []byte("# Made by `go test ./controllers/operator/render -update` from the components' roles: the API server lets the operator grant\n" +
		"# only what it holds itself.\n")
	golden.Compare(t, filepath.Join("..", "..", "..", "config", "rbac", "operands_role.yaml"), append(head, encode(t, []Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: cluster},
		&rbacv1.Role{ObjectMeta: namespaced, Rules: own},
	})...))
}
