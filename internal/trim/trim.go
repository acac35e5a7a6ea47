// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trim reduces the objects in the cache of kube-ovn-controller to the fields that controllers read.
package trim

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/intern"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Cache returns the options of the cache. It saves memory, because the cache contains every pod and node of the cluster. It keeps only the fields that the controllers
// read, and stores values that many objects share once. Controllers write objects only by patches of differences, so dropped fields are
// not lost.
func Cache() cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:   {Transform: trimPod},
			&corev1.Node{}:  {Transform: trimNode},
			&kubeovnv1.IP{}: {Transform: trimIP},

			&appsv1.StatefulSet{}: {Transform: trimStatefulSet},
		},
	}
}

func trimPod(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		annotations := pod.Annotations
		pod.TypeMeta = metav1.TypeMeta{}
		owners := keepers(pod.OwnerReferences)
		pod.ObjectMeta = trimMeta(&pod.ObjectMeta)
		pack(&pod.ObjectMeta)
		pod.Annotations, pod.OwnerReferences = networkAnnotations(pod.UID, annotations), owners
		pod.Spec = corev1.PodSpec{
			NodeName: intern.String(pod.Spec.NodeName), HostNetwork: pod.Spec.HostNetwork,
			InitContainers: trimContainers(pod.Spec.InitContainers), Containers: trimContainers(pod.Spec.Containers),
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodPhase(intern.String(string(pod.Status.Phase)))}
	}
	return o, nil
}

// trimContainers keeps the named ports, to which policies can refer.
func trimContainers(containers []corev1.Container) []corev1.Container {
	var kept []corev1.Container
	for i := range containers {
		var ports []corev1.ContainerPort
		for _, p := range containers[i].Ports {
			if p.Name != "" {
				ports = append(ports, corev1.ContainerPort{
					Name: intern.String(p.Name), ContainerPort: p.ContainerPort, Protocol: corev1.Protocol(intern.String(string(p.Protocol))),
				})
			}
		}
		if len(ports) > 0 {
			kept = append(kept, corev1.Container{RestartPolicy: containers[i].RestartPolicy, Ports: ports})
		}
	}
	return kept
}

// keepers returns the owners that make pods retain their addresses.
func keepers(owners []metav1.OwnerReference) []metav1.OwnerReference {
	for _, o := range owners {
		if (o.Kind == "StatefulSet" || o.Kind == "VirtualMachineInstance") && o.Controller != nil && *o.Controller {
			return []metav1.OwnerReference{{
				APIVersion: intern.String(o.APIVersion), Kind: intern.String(o.Kind), Name: intern.String(o.Name), Controller: o.Controller,
			}}
		}
	}
	return nil
}

// trimStatefulSet keeps the fields that determine the set's pods.
func trimStatefulSet(o any) (any, error) {
	if set, ok := o.(*appsv1.StatefulSet); ok {
		set.TypeMeta = metav1.TypeMeta{}
		set.ObjectMeta = trimMeta(&set.ObjectMeta)
		set.Spec = appsv1.StatefulSetSpec{Replicas: set.Spec.Replicas, Ordinals: set.Spec.Ordinals}
		set.Status = appsv1.StatefulSetStatus{}
	}
	return o, nil
}

func trimNode(o any) (any, error) {
	if node, ok := o.(*corev1.Node); ok {
		node.ManagedFields = nil
		addresses := node.Status.Addresses[:min(len(node.Status.Addresses), maxNodeAddresses)]
		node.Status = corev1.NodeStatus{Addresses: slices.Clone(addresses), Conditions: trimConditions(node.Status.Conditions)}
	}
	return o, nil
}

// maxNodeAddresses is the number of addresses of a Node that the cache keeps. A kubelet can list thousands.
const maxNodeAddresses = 32

// trimConditions keeps the status of the conditions that show whether a node serves, without the times of their heartbeats.
func trimConditions(conditions []corev1.NodeCondition) []corev1.NodeCondition {
	var kept []corev1.NodeCondition
	for _, c := range conditions {
		if c.Type == corev1.NodeReady || c.Type == corev1.NodeNetworkUnavailable {
			kept = append(kept, corev1.NodeCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
		}
	}
	return kept
}

func trimIP(o any) (any, error) {
	if ip, ok := o.(*kubeovnv1.IP); ok {
		ip.TypeMeta = metav1.TypeMeta{}
		annotations := ip.Annotations
		ip.ObjectMeta = trimMeta(&ip.ObjectMeta)
		if k8s.NodeOf(ip) != "" {
			ip.Annotations = networkAnnotations(ip.UID, annotations)
		}
		s := &ip.Spec
		pack(&ip.ObjectMeta, &s.IPAddress, &s.MACAddress)
		s.Namespace, s.Subnet, s.NodeName = intern.String(s.Namespace), intern.String(s.Subnet), intern.String(s.NodeName)
		s.PodType = intern.String(s.PodType)
		s.PodName, s.V4IPAddress = partOf(ip.Name, s.PodName), partOf(s.IPAddress, s.V4IPAddress)
		s.V6IPAddress = partOf(s.IPAddress, s.V6IPAddress)
	}
	return o, nil
}

// trimMeta keeps an object's identity, its times, and its labels.
func trimMeta(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: meta.Name, Namespace: intern.String(meta.Namespace), UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		Generation: meta.Generation, CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
		Labels: intern.Set(meta.Labels),
	}
}

// pack stores the strings that are unique to this object in one allocation.
func pack(meta *metav1.ObjectMeta, others ...*string) {
	uid := string(meta.UID)
	intern.Pack(append(others, &meta.Name, &uid, &meta.ResourceVersion)...)
	meta.UID = types.UID(uid)
}

// networkAnnotations keeps the annotations with the domain of a network (kubeovnv1.Annotation.For). It modifies the map, which is safe
// because a transformation owns its object.
func networkAnnotations(uid types.UID, annotations map[string]string) map[string]string {
	for key, value := range annotations {
		switch {
		case key == corev1.MirrorPodAnnotationKey:
			annotations[key] = "" // only its existence is of interest
		case !ofNetwork(key):
			delete(annotations, key)
		case value == string(uid):
			annotations[intern.String(key)] = string(uid)
		default:
			annotations[intern.String(key)] = intern.String(value)
		}
	}
	return annotations
}

func ofNetwork(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return slices.Contains(kubeovnv1.BandwidthKeys, key) || strings.HasSuffix(domain, kubeovnv1.AnnotationDomain) && domain != "kubectl"+kubeovnv1.AnnotationDomain
}

// partOf returns s as a substring of whole, if it is one, so that both share memory.
func partOf(whole, s string) string {
	if i := strings.Index(whole, s); i >= 0 {
		return whole[i : i+len(s)]
	}
	return s
}
