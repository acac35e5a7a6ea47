// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/nodehealth"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/ovs"
)

// sysctlsVariable has the directory of the node's /proc/sys/net.
const sysctlsVariable = "KILN_SYSCTLS"

// ovsHealthPort is the port of /healthz and /readyz.
const ovsHealthPort = nodehealth.Port

func newOVSCommand() *cobra.Command {
	o := ovs.Options{
		RunDir: "/run/openvswitch", OVNRunDir: "/run/ovn", ConfigDir: "/etc/openvswitch",
		HealthAddress: fmt.Sprintf(":%d", ovsHealthPort),
		Programs:      ovs.DefaultPrograms,
	}
	var datapath, tunnelType string
	command := &cobra.Command{
		Use:   "ovs",
		Short: "Run Open vSwitch and ovn-controller on a node",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			o.Datapath = v1alpha1.Datapath(datapath)
			for name := range strings.SplitSeq(tunnelType, ",") {
				o.TunnelTypes = append(o.TunnelTypes, v1alpha1.TunnelType(name))
			}
			return supervisor.ReportFailure(runOVS(command.Context(), o))
		},
	}
	flags := command.Flags()
	flags.StringVar(&datapath, "datapath", string(v1alpha1.DatapathKernel), "Kernel or Userspace")
	flags.StringVar(&o.TunnelInterface, "tunnel-interface", "", "interface of the tunnels; by default the interface with the node's address (POD_IP)")
	flags.StringVar(&tunnelType, "tunnel-type", string(v1alpha1.TunnelGeneve), "geneve or vxlan; both, with a comma between them, while the OVNCluster's tunnelType changes")
	flags.StringVar(&o.TrustDir, "trust-dir", "/etc/kiln/trust", "directory of sb-server.crt")
	return command
}

func runOVS(ctx context.Context, o ovs.Options) error {
	switch o.Datapath {
	case v1alpha1.DatapathKernel, v1alpha1.DatapathUserspace:
	default:
		return fmt.Errorf("--datapath is %q; it is Kernel or Userspace", o.Datapath)
	}
	for _, t := range o.TunnelTypes {
		switch t {
		case v1alpha1.TunnelGeneve, v1alpha1.TunnelVXLAN:
		default:
			return fmt.Errorf("--tunnel-type is %q; it is geneve or vxlan", t)
		}
	}
	o.LogLevel, o.ControllerLogLevel = &supervisor.LogLevel{}, &supervisor.LogLevel{}
	access := newAccess(ovsHealthPort)
	o.Access = access.Handler
	s, err := surround(ctx, component{
		access:    access,
		verbosity: agentVerbosity,
		daemons: func(l v1alpha1.Logging) {
			o.LogLevel.Set(l.OpenVSwitch)
			o.ControllerLogLevel.Set(l.OVNController)
		},
		profilingPort: ovsHealthPort + profilingOffset,
	})
	if err != nil {
		return err
	}
	o.Node, o.NodeAddress, o.Clusters, o.Log = s.node, s.address, s.clusters, ctrl.Log
	o.Sysctls = os.Getenv(sysctlsVariable)
	if server, _, err := rest.DefaultServerUrlFor(s.config); err == nil {
		o.APIServer, _ = netip.ParseAddrPort(server.Host) // a name is resolved by the network that a move interrupts
	}
	o.Requests = s.client.CertificatesV1().CertificateSigningRequests()
	return ovs.Run(ctx, o)
}
