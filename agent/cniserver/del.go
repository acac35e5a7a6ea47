// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"

	cni "github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/cni/wire"
)

// del detaches one interface of one container. It uses only the container's ID: the pod and the network namespace may be deleted already,
// and a later container of the same pod keeps its port.
func (s *Server) del(ctx context.Context, r wire.Request) (*wire.Response, error) {
	if r.ContainerID == "" || r.IfName == "" {
		return nil, cni.NewError(cni.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID or CNI_IFNAME is missing", "")
	}
	return nil, s.detach(ctx, r.ContainerID, r.IfName, always)
}

// gc detaches the containers of a network that are not in the runtime's list of valid attachments, if the list has another container of their pod, or
// their pod or device does not exist. The list alone is not enough: Multus 4.2 sends the attachments that it made itself, without those of pods that
// are older than its installation.
func (s *Server) gc(ctx context.Context, r wire.Request) (*wire.Response, error) {
	valid := make(map[cni.GCAttachment]bool, len(r.ValidAttachments))
	for _, attachment := range r.ValidAttachments {
		valid[attachment] = true
	}
	if !s.Pods.Synced() {
		return nil, cni.NewError(cni.ErrTryAgainLater, "the agent does not know the pods of this node yet", "")
	}
	attachments, err := s.Bridge.Attachments(ctx)
	if err != nil {
		return nil, err
	}
	isValid := func(a ovs.Attachment) bool {
		return valid[cni.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}]
	}
	current := map[types.NamespacedName]string{} // containers of the list, by pod
	for _, a := range attachments {
		if a.Network == r.Network && isValid(a) {
			current[podOf(a)] = a.ContainerID
		}
	}
	var failed []error
	for _, a := range attachments {
		if a.Network != r.Network || isValid(a) {
			continue
		}
		when := s.gone
		if container := current[podOf(a)]; container != "" && container != a.ContainerID {
			when = always
		}
		failed = append(failed, s.detach(ctx, a.ContainerID, a.IfName, when))
	}
	return nil, errors.Join(failed...)
}

// Sweep detaches stale attachments for which no DEL will arrive: containers whose pod is deleted, and ports whose device disappeared with
// its namespace. Both occur after a reboot, or a DEL while the agent was down. Pods must be synced.
func (s *Server) Sweep(ctx context.Context) error {
	attachments, err := s.Bridge.Attachments(ctx)
	if err != nil {
		return err
	}
	failed := []error{s.Bridge.SweepLimits(ctx)}
	for _, a := range attachments {
		gone, err := s.gone(ctx, a)
		if gone && err == nil {
			err = s.detach(ctx, a.ContainerID, a.IfName, s.gone)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// condition reports whether an attachment must be removed. It is called with the interface locked.
type condition func(context.Context, ovs.Attachment) (bool, error)

func always(context.Context, ovs.Attachment) (bool, error) { return true, nil }

func podOf(a ovs.Attachment) types.NamespacedName {
	return types.NamespacedName{Namespace: a.PodNamespace, Name: a.PodName}
}

func (s *Server) gone(ctx context.Context, a ovs.Attachment) (bool, error) {
	exists, err := s.Pods.Exists(ctx, podOf(a), types.UID(a.PodUID))
	if err != nil || !exists {
		return !exists, err
	}
	there, err := sandbox.HasLink(a.Name)
	return !there, err
}

// detach removes the ports and the veths of one interface of one container, if the condition holds. It removes the port before the
// device, so that Open vSwitch does not look for a missing device.
func (s *Server) detach(ctx context.Context, containerID, ifName string, when condition) error {
	unlock, err := s.turn(ctx, "del", containerID, ifName)
	if err != nil {
		return err
	}
	defer unlock()
	probed := false
	for alternative := range sandbox.Names {
		name := sandbox.HostName(containerID, ifName, alternative)
		a, found, err := s.Bridge.Find(ctx, name)
		if err != nil {
			return err
		}
		if found {
			if a.ContainerID != containerID || a.IfName != ifName {
				continue
			}
			if remove, err := when(ctx, a); err != nil || !remove {
				return err
			}
			probed = probed || len(a.ProbePorts) > 0
			if err := s.timed(ctx, "del", legPort, func() error { return s.Bridge.Detach(ctx, name) }); err != nil {
				return err
			}
			logr.FromContextOrDiscard(ctx).V(1).Info("detached an interface", "logicalPort", a.LogicalPort, "hostInterface", name)
		}
		if err := s.timed(ctx, "del", legLink, func() error { return sandbox.Remove(name) }); err != nil {
			return err
		}
	}
	if err := sandbox.Remove(sandbox.ProbeName(containerID, ifName)); err != nil {
		return err
	}
	if probed {
		s.Probes.Wake()
	}
	return nil
}

// check compares an attachment with the result of its ADD.
func (s *Server) check(ctx context.Context, r wire.Request) (*wire.Response, error) {
	if err := required(r); err != nil {
		return nil, err
	}
	if r.PrevResult == nil {
		return nil, cni.NewError(cni.ErrInvalidNetworkConfig, "CHECK needs prevResult", "")
	}
	unlock, err := s.locks.lock(ctx, r.ContainerID, r.IfName)
	if err != nil {
		return nil, err
	}
	defer unlock()
	iface, err := interfaceIn(r.PrevResult, r.NetNS, r.IfName)
	if err != nil {
		return nil, err
	}
	port, err := s.checkPort(ctx, r)
	if err != nil {
		return nil, err
	}
	iface.HostName = port.Name
	followed(&iface, r.PrevResult, port)
	if iface.MTU, err = sandbox.MTU(port.Name); err != nil {
		return nil, err
	}
	if err := iface.Verify(); err != nil {
		return nil, fmt.Errorf("container %s: %w", r.ContainerID, err)
	}
	return nil, nil
}

// checkPort returns the container's port. It must belong to the pod's logical port and have its flows installed.
func (s *Server) checkPort(ctx context.Context, r wire.Request) (ovs.Attachment, error) {
	pod, err := s.Pods.get(ctx, types.NamespacedName{Namespace: r.PodNamespace, Name: r.PodName})
	if err != nil {
		return ovs.Attachment{}, err
	}
	if pod == nil { // the pod is deleted; the DEL of its container follows
		pod = PodMetadata()
		pod.Namespace, pod.Name = r.PodNamespace, r.PodName
	}
	want := v1.PortOf(pod, r.Provider).Name
	for alternative := range sandbox.Names {
		name := sandbox.HostName(r.ContainerID, r.IfName, alternative)
		a, found, err := s.Bridge.Find(ctx, name)
		if err != nil {
			return ovs.Attachment{}, err
		}
		if !found || a.ContainerID != r.ContainerID {
			continue
		}
		installed, err := s.Bridge.Installed(ctx, name)
		switch {
		case err != nil:
			return ovs.Attachment{}, err
		case a.LogicalPort != want:
			return ovs.Attachment{}, fmt.Errorf("port %s of Open vSwitch is logical port %s, not %s", name, a.LogicalPort, want)
		case !installed:
			return ovs.Attachment{}, fmt.Errorf("ovn-controller has not installed the flows of port %s", name)
		}
		return a, nil
	}
	return ovs.Attachment{}, fmt.Errorf("container %s has no port for %s in Open vSwitch", r.ContainerID, r.IfName)
}
