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

// retry is the pause before Open vSwitch, which did not answer, is asked again.
const retry = time.Second

// enqueueAll adds the pods of all ports whenever the MTU of pods has changed.
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

// resizeInTurn is resize for who has not the turn on the container. One that is as it should be is not waited for.
func (s *Server) resizeInTurn(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	if want, err := s.otherMTU(ctx, a, network); want == 0 || err != nil {
		return err
	}
	unlock, err := s.locks.lock(ctx, a.ContainerID, a.IfName)
	if err != nil {
		return err
	}
	defer unlock()
	return s.resize(ctx, a, network)
}

// resize gives a container's link the MTU of its subnet, or that of pods on this node.
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
	if err != nil && !errors.Is(err, sandbox.ErrNoNamespace) { // without one, its DEL is to come
		return fmt.Errorf("container %s of pod %s/%s: %w", a.ContainerID, a.PodNamespace, a.PodName, err)
	}
	return nil
}

// otherMTU is the one that a container is to have, where it has another; else 0. What the host's end has is what it was given.
func (s *Server) otherMTU(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) (int, error) {
	want := network.MTU
	if want == 0 {
		var err error
		if want, err = s.MTU(ctx); err != nil {
			return 0, err
		}
	}
	have, err := sandbox.MTU(a.Name)
	if have == 0 || have == want {
		return 0, err
	}
	return want, err
}
