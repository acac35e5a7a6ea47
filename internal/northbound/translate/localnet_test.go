// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "testing"

func TestNamesakeOfLocalnet(t *testing.T) {
	for subnet, want := range map[string][2]string{"office": {"localnet", "office"}, "a.b": {"localnet.a", "b"}} {
		port := NamesakeOfLocalnet(subnet)
		if got := [2]string{port.Owner, port.Namespace}; got != want || port.Name != LocalnetPort(subnet) {
			t.Errorf("%s: %+v, want pod %s of namespace %s", subnet, port, want[0], want[1])
		}
	}
}
