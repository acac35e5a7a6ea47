// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Keys of the ConfigMap of external gateways.
const (
	keyExternalEnabled = "enable-external-gw"
	keyExternalNodes   = "external-gw-nodes"
)

// newExternalConfig adds a cache for the ConfigMap of external gateways to a manager. The cache of the operator has its own objects only.
func newExternalConfig(mgr manager.Manager, namespace string) (cache.Cache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultNamespaces:    map[string]cache.Config{namespace: {}},
		DefaultFieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.ExternalGatewayConfig),
		DefaultTransform:     cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache of ConfigMap %s: %w", v1alpha1.ExternalGatewayConfig, err)
	}
	if err := mgr.Add(c); err != nil {
		return nil, fmt.Errorf("add the cache of ConfigMap %s: %w", v1alpha1.ExternalGatewayConfig, err)
	}
	return c, nil
}

// readExternalGateways records the settings of the ConfigMap of external gateways in the status, where kube-ovn-controller reads them. While the ConfigMap is not valid, the
// last valid settings stay, and the condition Available says what to change.
func (r *Reconciler) readExternalGateways(ctx context.Context, p *pass) error {
	config, err := k8s.Find[corev1.ConfigMap](ctx, r.externalConfig, client.ObjectKey{Namespace: r.Namespace, Name: v1alpha1.ExternalGatewayConfig})
	if err != nil {
		return fmt.Errorf("get ConfigMap %s: %w", v1alpha1.ExternalGatewayConfig, err)
	}
	var data map[string]string
	if config != nil {
		data = config.Data
	}
	settings, err := parseExternalGateways(data)
	if err != nil {
		p.Advise(fmt.Sprintf("ConfigMap %s/%s: %v: its last valid settings stay applied", r.Namespace, v1alpha1.ExternalGatewayConfig, err))
		return nil
	}
	p.cluster.Status.ExternalGateways = settings
	return nil
}

// parseExternalGateways returns the settings in the data of the ConfigMap; nil if they do not enable external gateways. It ignores keys about networks and addresses, for which
// there are objects.
func parseExternalGateways(data map[string]string) (*v1alpha1.ExternalGatewaysStatus, error) {
	switch enabled := strings.TrimSpace(data[keyExternalEnabled]); enabled {
	case "", "false":
		return nil, nil //nolint:nilnil // there are no settings
	case "true":
	default:
		return nil, fmt.Errorf("%s is %.100q: write true or false", keyExternalEnabled, enabled)
	}
	settings := &v1alpha1.ExternalGatewaysStatus{}
	for name := range strings.SplitSeq(data[keyExternalNodes], ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return nil, fmt.Errorf("%s has %.100q, which is not the name of a node: write names with commas between them", keyExternalNodes, name)
		}
		settings.Nodes = append(settings.Nodes, name)
	}
	slices.Sort(settings.Nodes)
	settings.Nodes = slices.Compact(settings.Nodes)
	if len(settings.Nodes) > v1alpha1.MaxExternalGatewayNodes {
		return nil, fmt.Errorf("%s has %d nodes, more than %d: label the nodes with %s=true instead", keyExternalNodes, len(settings.Nodes), v1alpha1.MaxExternalGatewayNodes, v1alpha1.ExternalGatewayLabel)
	}
	return settings, nil
}
