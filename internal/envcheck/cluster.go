// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/lookup"
)

// page is the number of objects of one request.
const page = 500

// Cluster holds the objects that the checks use.
type Cluster struct {
	// Version of the API server, as v1.33.2.
	Version string
	// Groups of the API.
	Groups []string
	// Resources of kubeovn.io in all served versions.
	Resources []metav1.APIResource

	Nodes []corev1.Node
	// APIServer has the addresses of the API server, ClusterIPs those of its Service.
	APIServer, ClusterIPs []netip.Addr
	// ServiceCIDRs are those of the objects of this kind, if the API server serves it.
	ServiceCIDRs []string
	// OVNCluster is nil if there is none.
	OVNCluster *v1alpha1.OVNCluster

	Workloads  []Workload
	ConfigMaps []corev1.ConfigMap
	// Pods, Namespaces and Services have no more than the checks need.
	Pods       []corev1.Pod
	Namespaces []metav1.PartialObjectMetadata
	Services   []metav1.PartialObjectMetadata
	// Objects of kubeovn.io/v1, by kind.
	Objects map[string][]unstructured.Unstructured
	// Attachments are NetworkAttachmentDefinitions.
	Attachments []unstructured.Unstructured
}

// Workload is a Deployment, DaemonSet, StatefulSet, Job or CronJob.
type Workload struct {
	Kind string
	metav1.ObjectMeta
	// Replicas of a Deployment or StatefulSet; 1 for others.
	Replicas int32
	Template corev1.PodTemplateSpec
}

// Scheme has all types that Read needs.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	return scheme, nil
}

// Read reads the cluster. It skips optional kinds that the API server does not serve, and returns an error if anything else cannot be read.
func Read(ctx context.Context, c client.Client, d discovery.DiscoveryInterface) (*Cluster, error) {
	cluster := &Cluster{Objects: map[string][]unstructured.Unstructured{}}
	for _, read := range []func() error{
		func() error { return cluster.discover(d) },
		func() error { return cluster.readNetwork(ctx, c) },
		func() error { return cluster.readWorkloads(ctx, c) },
		func() error { return cluster.readPods(ctx, c) },
		func() error { return cluster.readObjects(ctx, c) },
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return cluster, nil
}

func (c *Cluster) discover(d discovery.DiscoveryInterface) error {
	version, err := d.ServerVersion()
	if err != nil {
		return fmt.Errorf("read the version of the API server: %w", err)
	}
	c.Version = version.GitVersion
	groups, err := d.ServerGroups()
	if err != nil {
		return fmt.Errorf("list the groups of the API: %w", err)
	}
	for _, group := range groups.Groups {
		c.Groups = append(c.Groups, group.Name)
		if group.Name != kubeovnv1.GroupVersion.Group {
			continue
		}
		for _, v := range group.Versions {
			list, err := d.ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil {
				return fmt.Errorf("list the kinds of %s: %w", v.GroupVersion, err)
			}
			for _, resource := range list.APIResources {
				if !strings.Contains(resource.Name, "/") {
					resource.Group, resource.Version = group.Name, v.Version
					c.Resources = append(c.Resources, resource)
				}
			}
		}
	}
	return nil
}

func (c *Cluster) readNetwork(ctx context.Context, r client.Reader) error {
	var nodes corev1.NodeList
	var services corev1.ServiceList
	var endpoints discoveryv1.EndpointSliceList
	var cidrs networkingv1.ServiceCIDRList
	var clusters v1alpha1.OVNClusterList
	err := errors.Join(
		list(ctx, r, &nodes),
		list(ctx, r, &services, client.InNamespace(metav1.NamespaceDefault)),
		list(ctx, r, &endpoints, client.InNamespace(metav1.NamespaceDefault)),
		optional(list(ctx, r, &cidrs)),
		optional(list(ctx, r, &clusters)),
	)
	if err != nil {
		return err
	}
	c.Nodes = nodes.Items
	for i := range endpoints.Items {
		if slice := &endpoints.Items[i]; lookup.IsOfAPIServer(slice) {
			c.APIServer = append(c.APIServer, lookup.EndpointAddresses(slice)...)
		}
	}
	for i := range services.Items {
		if services.Items[i].Name != "kubernetes" {
			continue
		}
		for _, text := range services.Items[i].Spec.ClusterIPs {
			if a, err := netip.ParseAddr(text); err == nil {
				c.ClusterIPs = append(c.ClusterIPs, a)
			}
		}
	}
	for i := range cidrs.Items {
		c.ServiceCIDRs = append(c.ServiceCIDRs, cidrs.Items[i].Spec.CIDRs...)
	}
	if len(clusters.Items) > 0 {
		c.OVNCluster = &clusters.Items[0]
	}
	return nil
}

func (c *Cluster) readWorkloads(ctx context.Context, r client.Reader) error {
	var deployments appsv1.DeploymentList
	var daemons appsv1.DaemonSetList
	var sets appsv1.StatefulSetList
	var jobs batchv1.JobList
	var crons batchv1.CronJobList
	var configs corev1.ConfigMapList
	err := errors.Join(list(ctx, r, &deployments), list(ctx, r, &daemons), list(ctx, r, &sets), list(ctx, r, &jobs), list(ctx, r, &crons),
		list(ctx, r, &configs, client.InNamespace(metav1.NamespaceSystem)))
	if err != nil {
		return err
	}
	add := func(kind string, m metav1.ObjectMeta, replicas *int32, template corev1.PodTemplateSpec) {
		w := Workload{Kind: kind, ObjectMeta: m, Replicas: 1, Template: template}
		if replicas != nil {
			w.Replicas = *replicas
		}
		c.Workloads = append(c.Workloads, w)
	}
	for _, o := range deployments.Items {
		add("Deployment", o.ObjectMeta, o.Spec.Replicas, o.Spec.Template)
	}
	for _, o := range daemons.Items {
		add("DaemonSet", o.ObjectMeta, nil, o.Spec.Template)
	}
	for _, o := range sets.Items {
		add("StatefulSet", o.ObjectMeta, o.Spec.Replicas, o.Spec.Template)
	}
	for _, o := range jobs.Items {
		if metav1.GetControllerOf(&o) == nil { // those of CronJobs repeat their template
			add("Job", o.ObjectMeta, nil, o.Spec.Template)
		}
	}
	for _, o := range crons.Items {
		add("CronJob", o.ObjectMeta, nil, o.Spec.JobTemplate.Spec.Template)
	}
	c.ConfigMaps = configs.Items
	return nil
}

// readPods keeps of each pod what the checks need.
func (c *Cluster) readPods(ctx context.Context, r client.Reader) error {
	next := client.Continue("")
	for first := true; first || next != ""; first = false {
		var pods corev1.PodList
		if err := list(ctx, r, &pods, client.Limit(page), next); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			kept := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Annotations: pod.Annotations}}
			kept.Spec.NodeName, kept.Spec.HostNetwork = pod.Spec.NodeName, pod.Spec.HostNetwork
			for _, container := range pod.Spec.Containers {
				kept.Spec.Containers = append(kept.Spec.Containers, corev1.Container{Name: container.Name, Ports: container.Ports})
			}
			c.Pods = append(c.Pods, kept)
		}
		next = client.Continue(pods.Continue)
	}
	for kind, into := range map[string]*[]metav1.PartialObjectMetadata{"Namespace": &c.Namespaces, "Service": &c.Services} {
		var metadata metav1.PartialObjectMetadataList
		metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := list(ctx, r, &metadata); err != nil {
			return err
		}
		*into = metadata.Items
	}
	return nil
}

// attachments is the kind of networks other than a pod's first.
var attachments = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}

// readObjects reads the objects of all kinds of kubeovn.io/v1. They are not decoded here, so that one that cannot be decoded hides no other.
func (c *Cluster) readObjects(ctx context.Context, r client.Reader) error {
	for _, kind := range Kinds() {
		items, err := ListUntyped(ctx, r, kubeovnv1.GroupVersion.WithKind(kind.Kind))
		if err != nil {
			return err
		}
		c.Objects[kind.Kind] = items
	}
	var err error
	c.Attachments, err = ListUntyped(ctx, r, attachments)
	return err
}

// Kinds returns all kinds of kubeovn.io/v1, sorted by name.
func Kinds() []*kubeovnv1.Kind {
	return slices.SortedFunc(slices.Values(kubeovnv1.Kinds), func(a, b *kubeovnv1.Kind) int { return cmp.Compare(a.Kind, b.Kind) })
}

// ListUntyped returns the objects of a kind that options select, in pages; none if the API server does not serve it.
func ListUntyped(ctx context.Context, r client.Reader, kind schema.GroupVersionKind, options ...client.ListOption) (items []unstructured.Unstructured, err error) {
	next := client.Continue("")
	for first := true; first || next != ""; first = false {
		var objects unstructured.UnstructuredList
		objects.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := optional(list(ctx, r, &objects, append(options, client.Limit(page), next)...)); err != nil {
			return nil, err
		}
		items = append(items, objects.Items...)
		next = client.Continue(objects.GetContinue())
	}
	return items, nil
}

func list(ctx context.Context, r client.Reader, into client.ObjectList, options ...client.ListOption) error {
	if err := r.List(ctx, into, options...); err != nil {
		kind := into.GetObjectKind().GroupVersionKind().Kind
		if kind == "" {
			kind = fmt.Sprintf("%T", into)
		}
		return fmt.Errorf("list %s: %w", kind, err)
	}
	return nil
}

// optional returns nil for the error of a kind that the API server does not serve.
func optional(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
