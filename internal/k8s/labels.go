// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SetLabels sets labels of an object, and removes labels whose value is empty or invalid.
func SetLabels(o client.Object, values map[string]string) {
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for key, value := range values {
		if value == "" || len(validation.IsValidLabelValue(value)) > 0 {
			delete(labels, key)
		} else {
			labels[key] = value
		}
	}
	o.SetLabels(labels)
}
