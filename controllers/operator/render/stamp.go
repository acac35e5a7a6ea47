// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	appsv1 "k8s.io/api/apps/v1"
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

// Templates returns the stamp of the pod template of every operand that upgrades replace, by name.
func Templates(c Config) map[string]string {
	all := map[string]string{}
	for _, operand := range Operands {
		if operand.Stage == "" {
			continue
		}
		for _, o := range operand.Objects(c) {
			if t := Template(o); t != nil {
				all[o.GetName()] = t.Annotations[TemplateAnnotation]
			}
		}
	}
	return all
}

// Template returns the pod template of a workload, or nil for any other object.
func Template(o Object) *corev1.PodTemplateSpec {
	switch w := o.(type) {
	case *appsv1.StatefulSet:
		return &w.Spec.Template
	case *appsv1.Deployment:
		return &w.Spec.Template
	case *appsv1.DaemonSet:
		return &w.Spec.Template
	}
	return nil
}
