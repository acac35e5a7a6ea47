// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// TemplateAnnotation is a hash of a workload's pod template. Pods inherit it, so it identifies the template of a pod.
const TemplateAnnotation = "kubeovn.io/template"

// stamp sets TemplateAnnotation. Fields that are set after stamp do not cause a replacement of existing pods.
func stamp(t *corev1.PodTemplateSpec) {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // impossible: all values of this API type have a JSON form
	}
	sum := sha256.Sum256(text)
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[TemplateAnnotation] = hex.EncodeToString(sum[:8])
}
