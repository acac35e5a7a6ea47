// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// firstNetworkAnnotations are the requests that this version supports only for a pod's first network.
var firstNetworkAnnotations = kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleRequest, kubeovnv1.RoleClaim)

// IgnoredPodAnnotations returns the keys, sorted, of a pod's annotations that this version ignores. The argument must have only
// the user's annotations, before the controller has added its own.
func IgnoredPodAnnotations(annotations map[string]string) []string {
	var keys []string
	for key, value := range annotations {
		if asksInVain(key, strings.TrimSpace(value)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func asksInVain(key, value string) bool {
	domain, name, _ := strings.Cut(key, "/")
	provider, ofNetwork := strings.CutSuffix(domain, kubeovnv1.AnnotationDomain)
	if !ofNetwork || value == "" {
		return false
	}
	usual, ignored := kubeovnv1.IgnoredAnnotations()[name]
	if provider == kubeovnv1.ProviderOVN {
		return ignored && value != usual
	}
	// `<attachment>.<namespace>`, with suffix `.ovn` for an OVN network
	return strings.Contains(provider, ".") && (ignored || slices.Contains(firstNetworkAnnotations, kubeovnv1.Annotation(name)))
}
