// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway

import (
	"context"
	"fmt"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Settings are those of the OVNCluster about external gateways. The zero value has the defaults.
type Settings struct {
	changed k8s.RequestSource

	mu       sync.Mutex
	sessions translate.BFD
}

// Set applies the spec of the OVNCluster. It does not block.
func (s *Settings) Set(spec *v1alpha1.OVNClusterSpec) {
	sessions := sessionsOf(&spec.Network.ExternalGateways.BFD)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == sessions {
		return
	}
	s.sessions = sessions
	s.changed.Add("")
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
