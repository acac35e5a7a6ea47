// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// serverGroups are the groups of objects that the API server maintains by itself, and of definitions.
var serverGroups = []string{"apiextensions.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io"}

// bootstrapping is the label of the server's own roles and bindings.
const bootstrapping = "kubernetes.io/bootstrapping"

// Shared is a server that several tests use, one after another.
type Shared struct {
	*Server
	resources metadata.Interface
	admin     kubernetes.Interface
	kinds     []schema.GroupVersionResource
	// first are the objects that stay.
	first map[types.UID]bool
}

// Share returns a started server for several tests. Its present objects stay.
func (s *Server) Share(ctx context.Context) (*Shared, error) {
	config := rest.CopyConfig(s.Config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	shared := &Shared{Server: s, first: map[types.UID]bool{}}
	var err error
	if shared.resources, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client of metadata: %w", err)
	}
	if shared.admin, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	lists, err := discovery.ServerPreferredResources(shared.admin.Discovery())
	if err != nil {
		return nil, fmt.Errorf("list the kinds: %w", err)
	}
	for _, list := range lists {
		of, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("list the kinds: %w", err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(serverGroups, of.Group) && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") {
				shared.kinds = append(shared.kinds, of.WithResource(r.Name))
			}
		}
	}
	// Namespaces come last: no controller deletes their objects. Admission policies come first: they could refuse the other deletions.
	slices.SortStableFunc(shared.kinds, func(a, b schema.GroupVersionResource) int { return rank(a) - rank(b) })
	return shared, shared.each(ctx, func(_ schema.GroupVersionResource, o *metav1.PartialObjectMetadata) error {
		shared.first[o.UID] = true
		return nil
	})
}

func rank(kind schema.GroupVersionResource) int {
	switch {
	case kind.Group == "admissionregistration.k8s.io":
		return 0
	case kind.Resource == "namespaces":
		return 2
	}
	return 1
}

// Clear deletes the objects that tests created, with or without finalizers, and waits for their end. It ignores changes of other objects. It polls, because it has no
// watch of all kinds, and each round also deletes what controllers created meanwhile.
func (s *Shared) Clear(ctx context.Context) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		var left []string
		err := s.each(ctx, func(kind schema.GroupVersionResource, o *metav1.PartialObjectMetadata) error {
			left = append(left, kind.Resource+" "+o.Namespace+"/"+o.Name)
			return s.delete(ctx, kind, o)
		})
		switch {
		case err != nil:
			return fmt.Errorf("delete the objects of a test: %w", err)
		case len(left) == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("objects of a test are left: %s", strings.Join(left, ", "))
		}
	}
}

// each calls f for the objects that no test may expect of a new server.
func (s *Shared) each(ctx context.Context, f func(schema.GroupVersionResource, *metav1.PartialObjectMetadata) error) error {
	for _, kind := range s.kinds {
		list, err := s.resources.Resource(kind).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			continue // its definition was deleted
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		for i := range list.Items {
			if o := &list.Items[i]; !s.first[o.UID] && !ofServer(kind, o) {
				if err := f(kind, o); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ofServer reports whether the server itself makes an object, at its start or later.
func ofServer(kind schema.GroupVersionResource, o *metav1.PartialObjectMetadata) bool {
	switch kind.Resource {
	case "namespaces":
		return o.Name == metav1.NamespaceDefault || strings.HasPrefix(o.Name, "kube-")
	case "services", "endpoints", "endpointslices":
		return o.Namespace == metav1.NamespaceDefault && o.Name == "kubernetes"
	case "priorityclasses":
		return strings.HasPrefix(o.Name, "system-")
	case "servicecidrs":
		return o.Name == "kubernetes"
	case "ipaddresses": // they end with their Services
		return true
	case "leases", "configmaps":
		return o.Namespace == metav1.NamespaceSystem && (strings.HasPrefix(o.Name, "apiserver-") || o.Name == "extension-apiserver-authentication")
	}
	return o.Labels[bootstrapping] != ""
}

func (s *Shared) delete(ctx context.Context, kind schema.GroupVersionResource, o *metav1.PartialObjectMetadata) error {
	client := s.resources.Resource(kind).Namespace(o.Namespace)
	var errs []error
	if len(o.Finalizers) > 0 {
		_, err := client.Patch(ctx, o.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		errs = append(errs, gone(err))
	}
	errs = append(errs, gone(client.Delete(ctx, o.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), PropagationPolicy: new(metav1.DeletePropagationBackground), Preconditions: metav1.NewUIDPreconditions(string(o.UID)),
	})))
	if kind.Resource == "namespaces" { // no controller of namespaces runs
		_, err := s.admin.CoreV1().Namespaces().Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}, metav1.UpdateOptions{})
		errs = append(errs, gone(err))
	}
	return errors.Join(errs...)
}

// gone returns an error, unless it says that the object was deleted or replaced in the meantime: the next look finds what there is.
func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
