// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// annotationPrefix is the prefix of annotations of a pod's first network and of other objects.
const annotationPrefix = kubeovnv1.ProviderOVN + kubeovnv1.AnnotationDomain + "/"

// users collects the objects of a kind with annotations, by the key and the text about it.
type users struct {
	kind string
	by   map[string]map[string][]string
}

func usersOf(kind string) *users { return &users{kind, map[string]map[string][]string{}} }

func (u *users) add(key, message, name string) {
	if u.by[key] == nil {
		u.by[key] = map[string][]string{}
	}
	u.by[key][message] = append(u.by[key][message], name)
}

func (u *users) findings() (found []Finding) {
	for _, key := range slices.Sorted(maps.Keys(u.by)) {
		for _, message := range slices.Sorted(maps.Keys(u.by[key])) {
			names := u.by[key][message]
			slices.Sort(names)
			found = append(found, Finding{Lost, "Annotation " + key, fmt.Sprintf("%s, on %d of kind %s: %s", message, len(names), u.kind, k8s.Some(names, someNames))})
		}
	}
	return found
}

const (
	withoutEffect = "without effect in this version"
	unknownKey    = "Kiln does not know it"
)

// annotations reports annotations without effect. Each finding is about one key on all objects of a kind, because there may be thousands of pods.
func (c *Cluster) annotations() (found []Finding) {
	pods := usersOf("Pod")
	for i := range c.Pods {
		pods.ofPod(c.Pods[i].ObjectMeta)
	}
	found = append(found, pods.findings()...)
	templates := map[string]*users{}
	for i := range c.Workloads {
		w := &c.Workloads[i]
		if templates[w.Kind] == nil {
			templates[w.Kind] = usersOf(w.Kind + " (pod template)")
		}
		m := *w.Template.ObjectMeta.DeepCopy()
		m.Namespace, m.Name = w.Namespace, w.Name
		templates[w.Kind].ofPod(m)
	}
	for _, kind := range slices.Sorted(maps.Keys(templates)) {
		found = append(found, templates[kind].findings()...)
	}
	for _, list := range []struct {
		kind  string
		metas []metav1.ObjectMeta
	}{
		{"Namespace", metasOf(c.Namespaces)}, {"Service", metasOf(c.Services)}, {"Node", c.nodeMetas()}, {"Subnet", c.objectMetas("Subnet")}, {"Vpc", c.objectMetas("Vpc")},
	} {
		of := usersOf(list.kind)
		for _, m := range list.metas {
			of.ofObject(m)
		}
		found = append(found, of.findings()...)
	}
	return found
}

// ofPod judges the annotations of a pod or a pod template.
func (u *users) ofPod(m metav1.ObjectMeta) {
	name := m.Namespace + "/" + m.Name
	for _, key := range validation.IgnoredPodAnnotations(m.Annotations) {
		u.add(key, withoutEffect, name)
	}
	for key := range m.Annotations {
		if isUnknown(key) {
			u.add(key, unknownKey, name)
		}
	}
	var invalid *kubeovnv1.AnnotationError
	if _, err := kubeovnv1.ParsePodRequest(m.Annotations); errors.As(err, &invalid) {
		u.add(invalid.Key, "a value that Kiln does not accept", name)
	}
}

// ofObject judges the annotations of an object other than a pod.
func (u *users) ofObject(m metav1.ObjectMeta) {
	ineffective := kubeovnv1.IneffectiveKeys()
	name := strings.TrimPrefix(m.Namespace+"/"+m.Name, "/")
	for key, value := range m.Annotations {
		usual, is := ineffective[key]
		switch {
		case is && value != "" && value != usual:
			u.add(key, withoutEffect, name)
		case isUnknown(key):
			u.add(key, unknownKey, name)
		}
	}
}

var knownKeys = sync.OnceValue(kubeovnv1.KnownKeys)

func isUnknown(key string) bool {
	_, known := slices.BinarySearch(knownKeys(), key)
	return !known && strings.HasPrefix(key, annotationPrefix)
}

func metasOf(list []metav1.PartialObjectMetadata) (metas []metav1.ObjectMeta) {
	for i := range list {
		metas = append(metas, list[i].ObjectMeta)
	}
	return metas
}

func (c *Cluster) nodeMetas() (metas []metav1.ObjectMeta) {
	for i := range c.Nodes {
		metas = append(metas, c.Nodes[i].ObjectMeta)
	}
	return metas
}

func (c *Cluster) objectMetas(kind string) (metas []metav1.ObjectMeta) {
	for i := range c.Objects[kind] {
		o := &c.Objects[kind][i]
		metas = append(metas, metav1.ObjectMeta{Name: o.GetName(), Annotations: o.GetAnnotations()})
	}
	return metas
}
