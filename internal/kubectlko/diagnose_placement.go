// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// placement reads the subnet. It returns an error that says what to change if the pods of the run would get no address of it: the same functions as in
// kube-ovn-controller decide.
func (s *subnetRun) placement(ctx context.Context, name string) error {
	reader := s.indexed()
	subnet, err := (&address.Chooser{Client: reader}).Subnet(ctx, kubeovnv1.ProviderOVN, name)
	switch problem := (*address.Problem)(nil); {
	case errors.As(err, &problem):
		return fmt.Errorf("pods get no address of the subnet: %s", plain(problem.Message))
	case err != nil:
		return err
	case subnet.DeletionTimestamp != nil:
		return fmt.Errorf("pods get no address of the subnet: subnet %s is being deleted", name)
	}
	network, problem := validation.Subnet(name, &subnet.Spec)
	if problem != nil {
		return fmt.Errorf("read the addresses of the subnet: %s", plain(problem.Message))
	}
	s.subnet, s.network = subnet, network
	oc, err := s.cluster(ctx)
	if err != nil {
		return err
	}
	namespaces, err := lookup.NewNamespaces(ctx, reader, reader)
	if err != nil {
		return err
	}
	networks, err := lookup.NewNetworks(ctx, reader, reader)
	if err != nil {
		return err
	}
	rules := grants.NewRules(reader, namespaces, networks, oc.Spec.Tenancy.Membership == v1alpha1.MembershipOpen)
	if s.in != "" {
		if err := reader.Get(ctx, client.ObjectKey{Name: s.in}, &corev1.Namespace{}); err != nil {
			return fmt.Errorf("read the namespace of --in: %w", err)
		}
		denied, err := rules.Subnet(ctx, s.in, subnet)
		if err == nil && denied != "" {
			err = errors.New(plain(denied))
		}
		return err
	}
	denied, err := rules.Subnet(ctx, s.name, subnet)
	if err != nil || denied == "" {
		return err
	}
	denied = strings.ReplaceAll(denied, s.name, "NAMESPACE") + ", and repeat with --in=NAMESPACE" // the name of the run is random, so no list has it
	if admitted := s.admitted(ctx, reader, rules, namespaces); len(admitted) > 0 {
		denied += ". These may use the subnet already: " + shortened(admitted)
	}
	return fmt.Errorf("pods of a new namespace get no address of the subnet: %s", plain(denied))
}

// admitted returns the existing namespaces that the subnet or its VPC lists, and whose pods may use it.
func (s *subnetRun) admitted(ctx context.Context, reader client.Reader, rules *grants.Rules, namespaces *lookup.Namespaces) (admitted []string) {
	names, err := namespaces.Selected(ctx, s.subnet)
	if err != nil {
		return nil // a proposal only
	}
	lists := [][]kubeovnv1.AllowedNamespace{s.subnet.Spec.AllowedNamespaces}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, reader, client.ObjectKey{Name: lookup.VpcOf(s.subnet)})
	if err == nil && vpc != nil {
		spec := k8s.AppliedVpc(vpc).Spec
		names, lists = append(names, spec.Namespaces...), append(lists, spec.AllowedNamespaces)
	}
	for _, list := range lists {
		for _, name := range list {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if len(admitted) > listed {
			break
		}
		denied, err := rules.Subnet(ctx, name, s.subnet)
		if err == nil && denied == "" && reader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{}) == nil {
			admitted = append(admitted, name)
		}
	}
	return admitted
}

// indexedClient reads from the API server as from the cache of kube-ovn-controller, with the same indexes: it lists all objects of a kind, and selects.
type indexedClient struct {
	client.Client
	keys map[string]client.IndexerFunc
	// planned is the namespace that the run is about to create.
	planned *corev1.Namespace
}

func (s *subnetRun) indexed() *indexedClient {
	planned := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{corev1.LabelMetadataName: s.name}}}
	return &indexedClient{s.objects, map[string]client.IndexerFunc{}, planned}
}

func indexKey(o runtime.Object, field string) string { return fmt.Sprintf("%T %s", o, field) }

// IndexField implements client.FieldIndexer.
func (c *indexedClient) IndexField(_ context.Context, o client.Object, field string, keys client.IndexerFunc) error {
	c.keys[indexKey(o, field)] = keys
	return nil
}

// Get implements client.Reader.
func (c *indexedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if namespace, is := o.(*corev1.Namespace); is && key.Name == c.planned.Name {
		c.planned.DeepCopyInto(namespace)
		return nil
	}
	return c.Client.Get(ctx, key, o, options...)
}

// List implements client.Reader.
func (c *indexedClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	if o.FieldSelector == nil {
		return c.Client.List(ctx, list, options...)
	}
	by := o.FieldSelector.Requirements()[0] // client.MatchingFields of one field
	o.FieldSelector = nil
	if err := c.Client.List(ctx, list, &o); err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("read a list: %w", err)
	}
	items = slices.DeleteFunc(items, func(item runtime.Object) bool {
		keys := c.keys[indexKey(item, by.Field)]
		return keys == nil || !slices.Contains(keys(item.(client.Object)), by.Value)
	})
	if err := meta.SetList(list, items); err != nil {
		return fmt.Errorf("select from a list: %w", err)
	}
	return nil
}
