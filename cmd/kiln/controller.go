// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/manager"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// defaultJoinCIDRs are the CIDRs of the join subnet if none are given.
var defaultJoinCIDRs = map[ipfamily.Family]netip.Prefix{
	ipfamily.IPv4: netip.MustParsePrefix("100.64.0.0/16"),
	ipfamily.IPv6: netip.MustParsePrefix("fd00:100:64::/112"),
}

// controllerHealthPort is the port of metrics, /healthz and /readyz.
const controllerHealthPort = 10660

var controllerComponent = component{
	verbosity:     func(s *v1alpha1.OVNClusterSpec) int32 { return s.Controller.LogLevel },
	profilingPort: controllerHealthPort + profilingOffset,
}

// addressFlags are the values of flags with addresses or JSON, before they are parsed.
type addressFlags struct{ pods, joins, services, gateways, excluded, protection string }

func newControllerCommand() *cobra.Command {
	var o manager.Options
	var given addressFlags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Turns network resources and Kubernetes objects into the OVN northbound database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			process := controllerComponent
			process.access = newAccess(controllerHealthPort)
			o.Access = process.access.Handler
			if o.Observe, err = process.observer(cmd.Context()); err != nil {
				return err
			}
			if err := parseController(&o, given); err != nil {
				return err
			}
			return runController(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&given.pods, "pod-cidrs", "10.16.0.0/16", "addresses of the subnet ovn-default, one CIDR per family")
	f.StringVar(&given.gateways, "pod-gateways", "", "gateways with which the subnet ovn-default is created, at most one per family")
	f.StringVar(&o.PodVlan, "pod-vlan", "", "Vlan with which the subnet ovn-default is created; empty for an overlay subnet")
	f.StringVar(&given.excluded, "exclude-ips", "", "addresses and ranges (from..to) that the subnet ovn-default excludes when it is created, with commas between them")
	f.StringVar(&given.joins, "join-cidrs", "", "addresses of the subnet join, one CIDR per family of --pod-cidrs (default 100.64.0.0/16, fd00:100:64::/112)")
	f.StringVar(&given.services, "service-cidrs", "10.96.0.0/12", "the API server's --service-cluster-ip-range")
	f.StringVar(&o.TLSDirectory, "tls-dir", "/etc/kiln/tls", "directory of tls.crt, tls.key and ca.crt for the northbound database")
	f.StringVar(&o.Address, "address", fmt.Sprintf(":%d", controllerHealthPort), "where metrics, /healthz and /readyz are served")
	f.StringVar(&o.PprofAddress, "pprof-address", "", "where profiles are served; empty for nowhere")
	f.BoolVar(&o.KeepVMIP, "keep-vm-ip", true, "keep the addresses of KubeVirt's virtual machines while these exist")
	f.StringVar((*string)(&o.Membership), "membership", string(v1alpha1.MembershipGranted),
		"which namespaces may name custom VPCs, private and external subnets, IPPools with namespaces, security groups and Vips: Granted (listed namespaces) or Open (every namespace)")
	f.StringVar((*string)(&o.ClusterAccess), "cluster-access", string(kubeovnv1.ClusterAccessNone), "clusterAccess of VPCs that do not set theirs: None or Services")
	f.StringVar((*string)(&o.PortSecurity), "port-security", string(kubeovnv1.PortSecurityEnforced), "portSecurity of subnets that do not set theirs: Enforced or Requested")
	f.StringVar((*string)(&o.PodAccess), "pod-access", string(v1alpha1.PodAccessOVN), "where pods reach Services: OVN (load balancers) or Node (no load balancers)")
	f.StringVar((*string)(&o.NetworkPolicies), "network-policies", string(v1alpha1.NetworkPoliciesEnforced), "policies of Kubernetes: Enforced or Ignored")
	f.StringVar(&given.protection, "control-plane-protection", "",
		"network.controlPlaneProtection of the OVNCluster in JSON: limits of the packets of a VPC that a node passes to ovn-controller; empty for the defaults")
	f.BoolVar(&o.Election.Enabled, "leader-elect", true, "work only while holding the Lease kube-ovn-controller")
	f.DurationVar(&o.Election.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a Lease that is not renewed holds others off")
	f.DurationVar(&o.Election.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long the leader tries to renew before it gives up")
	f.DurationVar(&o.Election.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "how long to wait between tries to take or renew the Lease")
	return cmd
}

func runController(ctx context.Context, o manager.Options) error {
	go limitMemory(ctx)
	kubeconfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("load the API server's address and credentials: %w", err)
	}
	return manager.Run(ctx, kubeconfig, o)
}

// parseDefaultSubnet parses the gateways and the excluded addresses of the subnet ovn-default.
func parseDefaultSubnet(o *manager.Options, given addressFlags) error {
	var err error
	if o.PodGateways, err = ipfamily.ParseAddrs(given.gateways); err != nil {
		return fmt.Errorf("--pod-gateways: %w", err)
	}
	if given.excluded == "" {
		return nil
	}
	o.ExcludeIPs = strings.Split(given.excluded, ",")
	if _, err := ipfamily.ParseRanges(o.ExcludeIPs); err != nil {
		return fmt.Errorf("--exclude-ips: %w", err)
	}
	return nil
}

// parseProtection parses limits in JSON; empty text stands for the defaults. It ignores unknown fields, which a newer operator can send.
func parseProtection(o *manager.Options, text string) error {
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &o.Protection); err != nil {
		return err
	}
	if modes := []v1alpha1.ProtectionMode{"", v1alpha1.ProtectionLimited, v1alpha1.ProtectionUnlimited}; !slices.Contains(modes, o.Protection.Mode) {
		return fmt.Errorf("mode is %q: use one of %s, %s", o.Protection.Mode, v1alpha1.ProtectionLimited, v1alpha1.ProtectionUnlimited)
	}
	return nil
}

// parseController parses the addresses in flags of kiln controller, checks the enumerated flags, and reads the process's identity from the environment.
func parseController(o *manager.Options, given addressFlags) error {
	for _, flag := range []struct {
		name, value string
		to          *[]netip.Prefix
	}{
		{"--pod-cidrs", given.pods, &o.PodCIDRs}, {"--join-cidrs", given.joins, &o.JoinCIDRs}, {"--service-cidrs", given.services, &o.ServiceCIDRs},
	} {
		cidrs, err := ipfamily.ParseCIDRs(flag.value)
		if err != nil {
			return fmt.Errorf("%s: %w", flag.name, err)
		}
		*flag.to = cidrs
	}
	for _, flag := range []struct {
		name, value string
		choices     []string
	}{
		{"--membership", string(o.Membership), []string{string(v1alpha1.MembershipGranted), string(v1alpha1.MembershipOpen)}},
		{"--cluster-access", string(o.ClusterAccess), []string{string(kubeovnv1.ClusterAccessNone), string(kubeovnv1.ClusterAccessServices)}},
		{"--pod-access", string(o.PodAccess), []string{string(v1alpha1.PodAccessOVN), string(v1alpha1.PodAccessNode)}},
		{"--network-policies", string(o.NetworkPolicies), []string{string(v1alpha1.NetworkPoliciesEnforced), string(v1alpha1.NetworkPoliciesIgnored)}},
		{"--port-security", string(o.PortSecurity), []string{string(kubeovnv1.PortSecurityEnforced), string(kubeovnv1.PortSecurityRequested)}},
	} {
		if !slices.Contains(flag.choices, flag.value) {
			return fmt.Errorf("%s is %q: use one of %s", flag.name, flag.value, strings.Join(flag.choices, ", "))
		}
	}
	if err := parseDefaultSubnet(o, given); err != nil {
		return err
	}
	if err := parseProtection(o, given.protection); err != nil {
		return fmt.Errorf("--control-plane-protection: %w", err)
	}
	if len(o.PodCIDRs) == 0 {
		return errors.New("--pod-cidrs is empty: pods need addresses")
	}
	if len(o.JoinCIDRs) == 0 {
		for _, cidr := range o.PodCIDRs {
			o.JoinCIDRs = append(o.JoinCIDRs, defaultJoinCIDRs[ipfamily.Of(cidr.Addr())])
		}
	}
	if ipfamily.Protocol(o.JoinCIDRs) != ipfamily.Protocol(o.PodCIDRs) {
		return fmt.Errorf("--join-cidrs %s and --pod-cidrs %s are not of the same families", ipfamily.Join(o.JoinCIDRs), ipfamily.Join(o.PodCIDRs))
	}
	var err error
	o.Own, err = k8s.OwnIdentity()
	return err
}
