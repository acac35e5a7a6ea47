// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestSecurityGroups(t *testing.T) {
	policies(t, "testdata/securitygroup-*.in.yaml", func(sg *kubeovnv1.SecurityGroup) compiled {
		return securityGroup(sg, func(name string) bool { return name != "not-there" })
	})
}
