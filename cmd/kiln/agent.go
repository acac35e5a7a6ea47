// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/kiln-net/kiln/agent"
	"github.com/kiln-net/kiln/agent/cniserver"
	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/cni/wire"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// agentHealthPort is the port of metrics, /healthz and /readyz.
const agentHealthPort = 10665

func newAgentCommand() *cobra.Command {
	o := agent.Options{
		Node: os.Getenv("NODE_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), CNISocket: wire.DefaultSocket, OVSSocket: "/run/openvswitch/db.sock",
		PluginSource: "/opt/kiln/cni", ToolSource: "/usr/bin/kubectl-ko", Address: fmt.Sprintf(":%d", agentHealthPort),
	}
	var services, tunnelType string
	command := &cobra.Command{
		Use:   "agent",
		Short: "Attach the pods of a node to OVN and connect the node itself",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			access := newAccess(agentHealthPort)
			o.Access = access.Handler
			apply, err := component{verbosity: agentVerbosity, profilingPort: agentHealthPort + profilingOffset, access: access}.observer(command.Context())
			if err != nil {
				return err
			}
			if o.Services, err = ipfamily.ParseCIDRs(services); err != nil {
				return fmt.Errorf("--service-cidrs: %w", err)
			}
			o.TunnelTypes = strings.Split(tunnelType, ",")
			if err := host.CheckPriority(o.CNIConfPriority); err != nil {
				return fmt.Errorf("--cni-conf-priority: %w", err)
			}
			if o.Node == "" {
				return errors.New("the environment variable NODE_NAME is empty: it comes from the downward API")
			}
			kubeconfig, err := config.GetConfig()
			if err != nil {
				return fmt.Errorf("find the API server: %w", err)
			}
			o.Mirror = &cniserver.MirrorSetting{}
			err = observe(command.Context(), kubeconfig, func(cluster *v1alpha1.OVNCluster) {
				apply(cluster)
				o.Mirror.Set(cluster.Spec.Agent.Mirror)
			})
			if err != nil {
				return err
			}
			return agent.Run(command.Context(), kubeconfig, o)
		},
	}
	flags := command.Flags()
	flags.StringVar(&services, "service-cidrs", "", "CIDRs of Services, one per family, with a comma between them")
	flags.BoolVar(&o.ServeServices, "serve-services", false, "make Services reachable from the node and from outside, as kube-proxy does")
	flags.StringVar(&tunnelType, "tunnel-type", string(v1alpha1.TunnelGeneve), "geneve or vxlan; both, with a comma between them, while the OVNCluster's tunnelType changes")
	flags.StringVar(&o.TunnelInterface, "tunnel-interface", "", "interface of the tunnels; by default the one that has their address")
	flags.IntVar(&o.MTU, "mtu", 0, "MTU of pods in bytes; by default what tunnels leave of the tunnel interface's")
	flags.StringVar(&o.Sysctls, "sysctl-dir", "", "where kernel parameters can be written; /proc/sys when empty")
	flags.StringVar(&o.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "where the container runtime looks for CNI plugins")
	flags.StringVar(&o.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "where the container runtime looks for network configurations")
	flags.StringVar(&o.CNIConfPriority, "cni-conf-priority", host.DefaultPriority,
		"two digits, the start of the network configuration's file name; the container runtime uses the first file")
	toolingFlag(flags, &o)
	return command
}

func toolingFlag(flags *pflag.FlagSet, o *agent.Options) {
	flags.StringVar(&o.ToolingDir, "tooling-dir", "", "where the kubectl plugin is on the node; empty for no plugin")
}
