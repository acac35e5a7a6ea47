// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Settings are the settings of the OVNCluster about external gateways. The zero value has the defaults.
type Settings struct {
	changed k8s.RequestSource

	mu       sync.Mutex
	sessions translate.BFD
	// selector selects the nodes that can host external ports. If it is empty, configured does; nil for all nodes.
	selector   map[string]string
	configured *v1alpha1.ExternalGatewaysStatus
}

// Set applies the settings of the OVNCluster. It does not block.
func (s *Settings) Set(cluster *v1alpha1.OVNCluster) {
	spec := &cluster.Spec.Network.ExternalGateways
	sessions, configured := sessionsOf(&spec.BFD), cluster.Status.ExternalGateways
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == sessions && maps.Equal(s.selector, spec.NodeSelector) && equality.Semantic.DeepEqual(s.configured, configured) {
		return
	}
	s.sessions, s.selector, s.configured = sessions, maps.Clone(spec.NodeSelector), configured.DeepCopy()
	s.changed.Add("")
}

// hosts reports whether a node can host external ports. It is nil if it does not exist.
func (s *Settings) hosts(node *corev1.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.selector) == 0 && s.configured == nil:
		return true
	case node == nil:
		return false
	case len(s.selector) > 0:
		return labels.SelectorFromSet(s.selector).Matches(labels.Set(node.Labels))
	}
	return slices.Contains(s.configured.Nodes, node.Name) || node.Labels[v1alpha1.ExternalGatewayLabel] == "true"
}

// whichHosts describes the nodes that can host external ports, for users.
func (s *Settings) whichHosts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.selector) > 0 {
		return "network.externalGateways.nodeSelector of the OVNCluster"
	}
	return fmt.Sprintf("ConfigMap %s: add the node to external-gw-nodes, or label it with %s=true", v1alpha1.ExternalGatewayConfig, v1alpha1.ExternalGatewayLabel)
}

// Source enqueues a request without a name after a change.
func (s *Settings) Source() source.Source { return &s.changed }

// bfd returns the settings of BFD sessions.
func (s *Settings) bfd() translate.BFD {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == (translate.BFD{}) {
		return sessionsOf(nil)
	}
	return s.sessions
}

func sessionsOf(b *v1alpha1.BFD) translate.BFD {
	transmit, receive, multiplier := b.Intervals()
	return translate.BFD{MinTransmit: int(transmit.Milliseconds()), MinReceive: int(receive.Milliseconds()), Multiplier: int(multiplier)}
}

// settingsChanged enqueues the VPCs with external ports.
func (r *External) settingsChanged(ctx context.Context) error {
	var vpcs kubeovnv1.VpcList
	if err := r.Client.List(ctx, &vpcs, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list VPCs: %w", err)
	}
	for i := range vpcs.Items {
		if vpc := &vpcs.Items[i]; len(k8s.AppliedVpc(vpc).Spec.ExternalSubnets()) > 0 {
			r.Settings.changed.Add(vpc.Name)
		}
	}
	return nil
}
