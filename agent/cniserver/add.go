// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	cni "github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/cni/wire"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// addLimit bounds an ADD. It is below the kubelet's timeout of two minutes, so that the kubelet receives the agent's error message.
const addLimit = 100 * time.Second

// limitOf returns the time for an ADD: less than addLimit if the plugin has waited for the agent.
func limitOf(r wire.Request) time.Duration {
	if r.Limit <= 0 {
		return addLimit
	}
	return time.Duration(min(r.Limit, addLimit.Milliseconds())) * time.Millisecond
}

// add attaches a container: address, veth, port, flows. The port is added while the container's end is configured, so that ovn-controller
// installs the flows in parallel.
func (s *Server) add(ctx context.Context, r wire.Request) (*wire.Response, error) {
	if err := required(r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limitOf(r))
	defer cancel()
	unlock, err := s.turn(ctx, "add", r.ContainerID, r.IfName)
	if err != nil {
		return nil, err
	}
	defer unlock()

	pod, network, err := s.address(ctx, r)
	if err != nil {
		return nil, err
	}
	ctx, stop := s.Pods.WhilePresent(ctx, client.ObjectKeyFromObject(pod), types.UID(r.PodUID))
	defer stop()
	iface, err := s.interfaceOf(ctx, r, pod, network)
	if err != nil {
		return nil, err
	}
	if network.ProviderNetwork != "" {
		if err := s.timed(ctx, "add", legNeighbours, func() error { return s.CheckNeighbours(ctx, network) }); err != nil {
			return nil, err
		}
	}
	err = s.timed(ctx, "add", legLink, func() (err error) {
		iface.HostName, err = s.link(ctx, r, iface)
		return err
	})
	if err != nil {
		return nil, err
	}
	attachment := attachmentOf(r, pod, network, iface)
	if attachment.ProbePorts, err = s.probePorts(ctx, pod, network); err != nil {
		return nil, err
	}
	limited, err := s.limitsOf(ctx, pod.Annotations, network)
	if err != nil {
		return nil, err
	}
	attachment.Limits = &limited
	if err := s.connect(ctx, attachment, iface, probeLink(r, attachment)); err != nil {
		if errors.Is(context.Cause(ctx), errPodDeleted) {
			return nil, podDeletedError(fmt.Sprintf("pod %s/%s (%s) was deleted before its port was ready: %v", r.PodNamespace, r.PodName, r.PodUID, err))
		}
		return nil, err
	}
	if err := s.catchUp(ctx, iface.HostName, network); err != nil {
		return nil, err
	}
	s.announce(ctx, iface)
	if len(attachment.ProbePorts) > 0 {
		// A failure here does not fail the ADD: the pod is connected without these routes, and the error may concern another pod's route.
		if err := s.timed(ctx, "add", legProbeRoutes, func() error { return s.Probes.Apply(ctx) }); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot make the routes of probes; trying again")
			s.Probes.Wake()
		}
	}
	if logger := ctrl.LoggerFrom(ctx).V(1); logger.Enabled() {
		logger.Info("attached an interface", "logicalPort", attachment.LogicalPort, "hostInterface", iface.HostName, "addresses", ipfamily.Join(network.Addresses))
	}
	return &wire.Response{Result: resultOf(iface, network, r.DNS)}, nil
}

// announceAgain is the time after which addresses are announced a second time. Packets that a pod sends before its flows are installed leave flows
// in the kernel datapath that drop more of the same kind, until ovs-vswitchd revalidates them.
const announceAgain = time.Second

// announce announces the addresses of a pod to its neighbours, now and after announceAgain. A failure does not fail the ADD: neighbours notice a
// new hardware address later by themselves.
func (s *Server) announce(ctx context.Context, iface sandbox.Interface) {
	logger := ctrl.LoggerFrom(ctx)
	if err := s.timed(ctx, "add", legAnnounce, iface.Announce); err != nil {
		logger.Error(err, "cannot announce the addresses")
	}
	time.AfterFunc(announceAgain, func() {
		if err := iface.Announce(); err != nil {
			logger.V(1).Info("cannot announce the addresses again; the pod may have ended", "error", err.Error())
		}
	})
}

// address waits for the pod to have its address.
func (s *Server) address(ctx context.Context, r wire.Request) (pod *metav1.PartialObjectMetadata, network v1.PodNetwork, err error) {
	began := time.Now()
	err = s.timed(ctx, "add", legAddress, func() error {
		key := types.NamespacedName{Namespace: r.PodNamespace, Name: r.PodName}
		pod, network, err = s.Pods.Wait(ctx, key, types.UID(r.PodUID), r.Provider)
		return err
	})
	addressSeconds.WithLabelValues(s.Node).Add(time.Since(began).Seconds())
	return pod, network, err
}

// connect adds the host's end as a port, waits until it passes traffic, and configures the container's end in parallel.
func (s *Server) connect(ctx context.Context, a ovs.Attachment, iface sandbox.Interface, probe *sandbox.Probe) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return s.port(ctx, a) })
	both.Go(func() error { return s.timed(ctx, "add", legConfigure, iface.Configure) })
	if probe != nil {
		both.Go(func() error { return s.timed(ctx, "add", legProbe, probe.Create) })
	}
	return both.Wait()
}

// port adds a port and waits until ovn-controller has installed its flows.
func (s *Server) port(ctx context.Context, a ovs.Attachment) error {
	if err := s.timed(ctx, "add", legPort, func() error { return s.Bridge.Attach(ctx, a) }); err != nil {
		return err
	}
	began := time.Now()
	err := s.timed(ctx, "add", legOfport, func() error { return s.Bridge.WaitPort(ctx, a.Name) })
	if err == nil {
		err = s.timed(ctx, "add", legFlows, func() error { return s.Bridge.WaitInstalled(ctx, a.Name) })
	}
	connectivitySeconds.WithLabelValues(s.Node).Add(time.Since(began).Seconds())
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ovn-controller of this node has not installed the flows of logical port %s: %w", a.LogicalPort, err)
	}
	return err
}

// required returns an error if a parameter that identifies the container is missing.
func required(r wire.Request) error {
	for name, value := range map[string]string{
		"CNI_CONTAINERID": r.ContainerID, "CNI_IFNAME": r.IfName, "CNI_NETNS": r.NetNS, "provider": r.Provider,
		"K8S_POD_NAME in CNI_ARGS": r.PodName, "K8S_POD_NAMESPACE in CNI_ARGS": r.PodNamespace,
	} {
		if value == "" {
			return cni.NewError(cni.ErrInvalidEnvironmentVariables, name+" is missing", "")
		}
	}
	return nil
}

// interfaceOf returns the desired interface of the container, without HostName, which link chooses.
func (s *Server) interfaceOf(ctx context.Context, r wire.Request, pod *metav1.PartialObjectMetadata, network v1.PodNetwork) (sandbox.Interface, error) {
	iface := sandbox.Interface{NetNS: r.NetNS, Name: r.IfName, MAC: network.MAC}
	var err error
	if iface.MTU, err = s.mtuOf(ctx, network); err != nil {
		return iface, err
	}
	if iface.ComputeChecksums, err = s.Bridge.Userspace(ctx); err != nil {
		return iface, err
	}
	if iface.Addresses, err = prefixes(network); err != nil {
		return iface, fmt.Errorf("annotations of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	iface.Routes, err = routes(r, pod, network)
	return iface, err
}

// link creates the veth and returns the name of the host's end. If no earlier ADD left a device or port, it needs no lookup of links.
func (s *Server) link(ctx context.Context, r wire.Request, iface sandbox.Interface) (string, error) {
	var names []string // names that Open vSwitch does not hold for another container
	free := ""
	for alternative := range sandbox.Names {
		name := sandbox.HostName(r.ContainerID, r.IfName, alternative)
		holder, held, err := s.Bridge.Find(ctx, name)
		if err != nil {
			return "", err
		}
		if held && (holder.ContainerID != r.ContainerID || holder.IfName != r.IfName) {
			continue
		}
		names = append(names, name)
		if !held && free == "" {
			free = name
		}
	}
	if free == sandbox.HostName(r.ContainerID, r.IfName, 0) {
		iface.HostName = free
		if err := iface.Create(); !errors.Is(err, sandbox.ErrExists) {
			return free, err
		}
	}
	return s.relink(iface, names, free)
}

// relink reuses an intact veth of an earlier ADD of the same container. Otherwise it deletes the leftovers and creates the veth under a
// name that no port of Open vSwitch has.
func (s *Server) relink(iface sandbox.Interface, names []string, free string) (string, error) {
	for _, name := range names {
		iface.HostName = name
		switch intact, err := iface.Intact(); {
		case err != nil:
			return "", err
		case intact:
			return name, iface.Resize() // the earlier ADD may have used another MTU
		}
		if err := sandbox.Remove(name); err != nil {
			return "", err
		}
	}
	if free == "" {
		return "", fmt.Errorf("every name that the host's end of %s in %s may have is still a port of Open vSwitch", iface.Name, iface.NetNS)
	}
	iface.HostName = free
	return free, iface.Create()
}

func attachmentOf(r wire.Request, pod *metav1.PartialObjectMetadata, network v1.PodNetwork, iface sandbox.Interface) ovs.Attachment {
	return ovs.Attachment{
		Name:         iface.HostName,
		LogicalPort:  v1.PortOf(pod, r.Provider).Name,
		PodUID:       string(pod.UID),
		PodName:      pod.Name,
		PodNamespace: pod.Namespace,
		ContainerID:  r.ContainerID,
		IfName:       r.IfName,
		Network:      r.Network,
		NetNS:        r.NetNS,
		MAC:          network.MAC.String(),
		Addresses:    network.Addresses,
		CIDRs:        network.CIDRs,
		Gateways:     network.Gateways,
		Mirrored:     mirrored(pod, r.Provider),
	}
}

// prefixes returns the addresses, each with the prefix length of the subnet's CIDR that contains it.
func prefixes(network v1.PodNetwork) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(network.Addresses))
	for _, address := range network.Addresses {
		i := cidrOf(network, address)
		if i < 0 {
			return nil, fmt.Errorf("address %s is in no CIDR of the subnet (%v)", address, network.CIDRs)
		}
		out = append(out, netip.PrefixFrom(address, network.CIDRs[i].Bits()))
	}
	return out, nil
}

// cidrOf returns the index of the CIDR that contains an address, which is also the index of its gateway; -1 if no CIDR does.
func cidrOf(network v1.PodNetwork, address netip.Addr) int {
	return slices.IndexFunc(network.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(address) })
}
