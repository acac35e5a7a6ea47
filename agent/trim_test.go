// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	v1 "github.com/kiln-net/kiln/api/v1"
)

// TestTheCacheHasNoACLs: a subnet has its ACLs twice, and each node caches every subnet.
func TestTheCacheHasNoACLs(t *testing.T) {
	acls := []v1.ACL{{Match: "ip4"}}
	for name, s := range map[string]*v1.Subnet{
		"validated":     {Spec: v1.SubnetSpec{MTU: 1400, ACLs: acls}, Status: v1.SubnetStatus{ValidatedSpec: &v1.SubnetSpec{MTU: 1400, ACLs: acls}}},
		"not validated": {Spec: v1.SubnetSpec{MTU: 1400, ACLs: acls}},
	} {
		if _, err := trimSubnet(s); err != nil {
			t.Fatal(err)
		}
		last := s.Status.ValidatedSpec
		if s.Spec.ACLs != nil || s.Spec.MTU != 1400 || last != nil && (last.ACLs != nil || last.MTU != 1400) {
			t.Errorf("%s: the cache has %+v", name, s)
		}
	}
}
