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

// TemplateAnnotation tells the templates of a workload apart, and with them the pods made from each.
const TemplateAnnotation = "kubeovn.io/template"

// stamp marks a template that is complete but for what does not concern the pods that are there.
func stamp(t *corev1.PodTemplateSpec) {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // an API type without a value that JSON does not have
	}
	sum := sha256.Sum256(text)
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[TemplateAnnotation] = hex.EncodeToString(sum[:8])
}

// Templates are the stamps of the pods of every component, by its name.
func Templates(c Config) map[string]string {
	all := map[string]string{}
	objects := append(DatabaseObjects(c, Northbound), DatabaseObjects(c, Southbound)...)
	for _, more := range [][]Object{NorthdObjects(c), OpenVSwitchObjects(c), ControllerObjects(c), AgentObjects(c)} {
		objects = append(objects, more...)
	}
	for _, o := range objects {
		if t := Template(o); t != nil {
			all[o.GetName()] = t.Annotations[TemplateAnnotation]
		}
	}
	return all
}

// Template of a workload's pods; nil of any other object.
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
