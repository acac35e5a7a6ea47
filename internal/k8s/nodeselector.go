// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// kubeletLabels are the labels of the domains kubernetes.io and k8s.io that the admission plugin NodeRestriction lets kubelets write on their own
// Nodes (k8s.io/kubelet/pkg/apis, well_known_labels.go).
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// kubeletNamespaces are the prefixes of further labels that kubelets may write, also with a subdomain.
var kubeletNamespaces = []string{corev1.LabelNamespaceSuffixKubelet, corev1.LabelNamespaceSuffixNode}

// KubeletsMaySatisfy reports whether a node can select itself: a kubelet may write all labels of the selector on its own Node. It is false for an
// empty selector, which stands for a default.
func KubeletsMaySatisfy(selector map[string]string) bool {
	for key := range selector {
		if !kubeletMayWrite(key) {
			return false
		}
	}
	return len(selector) > 0
}

func kubeletMayWrite(key string) bool {
	prefix, _, is := strings.Cut(key, "/")
	if !is || !within(prefix, "kubernetes.io") && !within(prefix, "k8s.io") {
		return true
	}
	return slices.Contains(kubeletLabels, key) || slices.ContainsFunc(kubeletNamespaces, func(n string) bool { return within(prefix, n) })
}

// within reports whether a domain is another one or a subdomain of it.
func within(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
