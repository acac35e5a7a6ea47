// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// ignoredAnnotations are those of Kube-OVN by which users ask for what this version does not do, with the value that asks for what a
// pod has anyway.
var ignoredAnnotations = map[string]string{
	"activation_strategy":                  "rarp",
	"bgp":                                  "false",
	"egress_burst":                         "",
	"egress_rate":                          "",
	"eip":                                  "",
	"ingress_burst":                        "",
	"ingress_rate":                         "",
	"jitter":                               "",
	"latency":                              "",
	"limit":                                "",
	"loss":                                 "",
	"mirror":                               "false",
	"snat":                                 "",
	string(kubeovnv1.AnnotationPodNICType): kubeovnv1.PodNICTypeVeth,
}

// firstNetworkAnnotations are the requests that this version acts on for a pod's first network, and for no other.
var firstNetworkAnnotations = kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleRequest, kubeovnv1.RoleClaim)

// IgnoredPodAnnotations are the keys, in order, by which a pod asks for what this version does not do. It looks at users' annotations:
// those of a pod that nothing was written on yet.
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
	usual, ignored := ignoredAnnotations[name]
	if provider == kubeovnv1.ProviderOVN {
		return ignored && value != usual
	}
	// `<attachment>.<namespace>`, with `.ovn` behind it where the network is one of OVN
	return strings.Contains(provider, ".") && (ignored || slices.Contains(firstNetworkAnnotations, kubeovnv1.Annotation(name)))
}
