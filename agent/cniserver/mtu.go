// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// retry is the delay before the ports are read again after Open vSwitch returned an error.
const retry = time.Second

// enqueueAll enqueues the pods of all ports whenever the MTU of pods has changed.
func (s *Server) enqueueAll(ctx context.Context, add func(reconcile.Request)) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.MTUChanged:
		case <-again:
		}
		attachments, err := s.Bridge.Attachments(ctx)
		again = nil
		if err != nil {
			again = time.After(retry)
		}
		for _, a := range attachments {
			add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: a.PodNamespace, Name: a.PodName}})
		}
	}
}

// resizeInTurn calls resize with the interface locked. If the MTU is right already, it does not wait for the lock.
func (s *Server) resizeInTurn(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	if want, err := s.otherMTU(ctx, a, network); want == 0 || err != nil {
		return err
	}
	return s.inTurn(ctx, a, func(a ovs.Attachment) error { return s.resize(ctx, a, network) })
}

// resize sets the MTU of a container's link to the MTU of its subnet, or to the node's MTU of pods if the subnet sets none.
func (s *Server) resize(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	want, err := s.otherMTU(ctx, a, network)
	if want == 0 || err != nil {
		return err
	}
	iface := sandbox.Interface{NetNS: a.NetNS, Name: a.IfName, HostName: a.Name, MTU: want}
	for _, address := range a.Addresses {
		iface.Addresses = append(iface.Addresses, netip.PrefixFrom(address, address.BitLen()))
	}
	err = iface.Resize()
	if err != nil && !errors.Is(err, sandbox.ErrNoNamespace) { // then the container was deleted, and its DEL follows
		return fmt.Errorf("container %s of pod %s/%s: %w", a.ContainerID, a.PodNamespace, a.PodName, err)
	}
	return nil
}

// otherMTU returns the desired MTU of a container if the host's end has a different one, and 0 otherwise. The host's end shows the
// applied MTU because Resize sets it last.
func (s *Server) otherMTU(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) (int, error) {
	want, err := s.mtuOf(ctx, network)
	switch {
	case err != nil && network.ProviderNetwork != "":
		return 0, nil // the MTU stays until the provider network is ready again, which sends to MTUChanged
	case err != nil:
		return 0, err
	}
	have, err := sandbox.MTU(a.Name)
	if have == 0 || have == want {
		return 0, err
	}
	return want, err
}

// mtuOf returns the MTU of a pod: its subnet's, or else its provider network's, or else the node's MTU of pods. The error of an underlay pod
// says that the provider network is not ready.
func (s *Server) mtuOf(ctx context.Context, network v1.PodNetwork) (int, error) {
	if network.ProviderNetwork == "" {
		if network.MTU != 0 {
			return network.MTU, nil
		}
		return s.MTU(ctx)
	}
	mtu, err := s.ProviderMTU(ctx, network.ProviderNetwork)
	if network.MTU != 0 {
		mtu = network.MTU
	}
	return mtu, err
}
