// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestAnOVNClusterOfAnotherNameIsRefused(t *testing.T) {
	err := theWorld.admin.Create(t.Context(), &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: "another"}})
	newG(t).Expect(err).To(MatchError(ContainSubstring("must be named default")))
}
