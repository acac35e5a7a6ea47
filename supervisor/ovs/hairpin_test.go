// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestAPodReachesItselfThroughItsService checks, on real flows, which client address the pod sees when it connects to itself.
func TestAPodReachesItselfThroughItsService(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	o := nodeOptions(t, c)
	background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	pod := logicalPort(t, o, c, "a", "10.0.0.1/24")
	command(t, "usr/bin/ovn-nbctl", northbound(c), "lsp-set-addresses", "a", "02:00:00:00:00:01 10.0.0.1 fd00::1")
	inside := must.Value(netlink.NewHandleAt(pod))
	link := must.Value(inside.LinkByName("a_c"))
	must.Succeed(t, inside.AddrAdd(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("fd00::1/64")), Flags: unix.IFA_F_NODAD}))

	service := translate.ServiceInputs{Vpc: "ovn-cluster", Service: &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIPs: []string{"10.96.0.80", "fd00:96::80"}, Ports: []corev1.ServicePort{{Port: 80}},
	}}}
	families := []struct {
		of           discoveryv1.AddressType
		pod, gateway netip.Addr
		vip          netip.AddrPort
	}{
		{discoveryv1.AddressTypeIPv4, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.254"), netip.MustParseAddrPort("10.96.0.80:80")},
		{discoveryv1.AddressTypeIPv6, netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::fe"), netip.MustParseAddrPort("[fd00:96::80]:80")},
	}
	for _, f := range families {
		service.Slices = append(service.Slices, &discoveryv1.EndpointSlice{
			AddressType: f.of, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{f.pod.String()}}},
			Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		})
		// There is no gateway that answers. The logical switch applies the load balancer to packets that the pod sends to the gateway's
		// MAC address.
		must.Succeed(t, inside.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: f.gateway.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99}, State: netlink.NUD_PERMANENT,
		}))
		must.Succeed(t, inside.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: f.gateway.AsSlice()}))
	}
	// Open vSwitch in userspace rejects a packet without a checksum as invalid; the kernel leaves the checksum to the device.
	must.Succeed(t, nodetest.Within(pod, func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change("a_c", map[string]bool{"tx-checksum-ip-generic": false})
	}))
	row := translate.Service(service)[0].Model.(*nb.LoadBalancer)
	create := []string{northbound(c), "--wait=hv", "--timeout=120", "--id=@lb", "create", "Load_Balancer", "name=self", "protocol=" + *row.Protocol}
	for column, values := range map[string]map[string]string{"options": row.Options, "vips": row.Vips} {
		for key, value := range values {
			create = append(create, fmt.Sprintf("%s:%q=%q", column, key, value))
		}
	}
	command(t, "usr/bin/ovn-nbctl", append(create, "--", "add", "Logical_Switch", "s", "load_balancer", "@lb")...)
	for i, f := range families {
		supervisortest.Eventually(t, "the pod reaches itself at "+f.vip.String(), func() error {
			client, err := dialSelf(pod, netip.AddrPortFrom(f.pod, 8080), f.vip)
			if err == nil && client != translate.HairpinSources[i] {
				err = fmt.Errorf("the pod sees %s, want %s", client, translate.HairpinSources[i])
			}
			return err
		})
	}
}

// dialSelf connects from a namespace to a Service whose endpoint is an address of the same namespace. It returns the client
// address that the server sees.
func dialSelf(in netns.NsHandle, server, service netip.AddrPort) (seen netip.Addr, err error) {
	err = nodetest.Within(in, func() error {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(server))
		if err != nil {
			return err
		}
		defer listener.Close()
		client, err := net.DialTimeout("tcp", service.String(), time.Second)
		if err != nil {
			return err
		}
		defer client.Close()
		if err := listener.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		accepted, err := listener.Accept()
		if err != nil {
			return err
		}
		seen = accepted.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		return accepted.Close()
	})
	return seen, err
}
