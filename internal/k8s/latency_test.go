// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import "testing"

func TestURLsOfResources(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/namespaces/a/pods/b/status":               "/api/v1/pods/status",
		"/api/v1/namespaces/a/pods":                        "/api/v1/pods",
		"/api/v1/namespaces/a":                             "/api/v1/namespaces",
		"/api/v1/nodes/n":                                  "/api/v1/nodes",
		"/apis/kubeovn.io/v1/subnets/s/status":             "/apis/kubeovn.io/v1/subnets/status",
		"/apis/coordination.k8s.io/v1/namespaces/a/leases": "/apis/coordination.k8s.io/v1/leases",
		"/apis/kubeovn.io/v1":                              "/apis/kubeovn.io/v1",
		"/version":                                         "/version",
		"/":                                                "/",
	} {
		if got := resourceURL(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}
