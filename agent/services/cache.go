// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
)

// labelProxyName marks Services that another program serves.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// Watched returns the kinds that a Proxy reads. To save memory, because they are cached on every node, it excludes headless Services and
// Services of other proxies, and trims objects to the fields that are read. Without a Proxy, it selects only the EndpointSlices of the
// API server.
func Watched(served bool) map[client.Object]cache.ByObject {
	slices := cache.ByObject{Label: without(corev1.IsHeadlessService), Transform: trimSlice}
	if !served {
		slices.Label = labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"})
		slices.Namespaces = map[string]cache.Config{metav1.NamespaceDefault: {}}
	}
	return map[client.Object]cache.ByObject{
		&corev1.Service{}:            {Label: without(corev1.IsHeadlessService, labelProxyName), Transform: trimService},
		&discoveryv1.EndpointSlice{}: slices,
		&networkingv1.ServiceCIDR{}:  {},
		&v1.IP{}:                     {Label: labels.SelectorFromSet(labels.Set{v1.LabelSubnet: v1.JoinSubnet}), Transform: trimIP},
	}
}

func without(keys ...string) labels.Selector {
	selector := labels.NewSelector()
	for _, key := range keys {
		if r, err := labels.NewRequirement(key, selection.DoesNotExist, nil); err == nil { // the key is well-formed
			selector = selector.Add(*r)
		}
	}
	return selector
}

func trimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
	}
}

// Keys of the annotations that the agent reads.
var (
	keysOfIP      = v1.Keys(v1.AnnotationsOf(v1.OnIP))
	keysOfService = v1.Keys(v1.AnnotationsOf(v1.OnService))
)

func trimIP(o any) (any, error) {
	if ip, ok := o.(*v1.IP); ok {
		annotations := map[string]string{}
		for _, key := range keysOfIP {
			annotations[key] = ip.Annotations[key]
		}
		ip.ObjectMeta, ip.Spec = trimMeta(&ip.ObjectMeta), v1.IPSpec{Namespace: ip.Spec.Namespace, NodeName: ip.Spec.NodeName} // for k8s.NodeOf
		ip.Annotations = annotations
	}
	return o, nil
}

func trimService(o any) (any, error) {
	if s, ok := o.(*corev1.Service); ok {
		annotations := map[string]string{}
		for _, key := range keysOfService {
			if value := s.Annotations[key]; value != "" {
				annotations[key] = value
			}
		}
		s.ObjectMeta = trimMeta(&s.ObjectMeta)
		if len(annotations) > 0 {
			s.Annotations = annotations
		}
		s.Spec.Selector, s.Status.Conditions = nil, nil
	}
	return o, nil
}

func trimSlice(o any) (any, error) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return o, nil
	}
	service := s.Labels[discoveryv1.LabelServiceName]
	s.ObjectMeta = trimMeta(&s.ObjectMeta)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		*e = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName}
	}
	return o, nil
}
