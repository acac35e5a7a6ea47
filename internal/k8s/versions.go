// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import "k8s.io/apimachinery/pkg/util/resourceversion"

// OlderVersion reports whether resource version version precedes than. It returns false if they cannot be compared.
func OlderVersion(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
