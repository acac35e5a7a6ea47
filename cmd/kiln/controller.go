// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

func init() { commands = append(commands, newControllerCommand) }

// defaultJoinCIDRs are the CIDRs of the join subnet if none are given.
var defaultJoinCIDRs = map[ipfamily.Family]netip.Prefix{
	ipfamily.IPv4: netip.MustParsePrefix("100.64.0.0/16"),
	ipfamily.IPv6: netip.MustParsePrefix("fd00:100:64::/112"),
}

// controllerOptions are the flags of `kiln controller`.
type controllerOptions struct {
	podCIDRs, joinCIDRs, serviceCIDRs []netip.Prefix
	// tlsDirectory contains the certificate for the northbound database.
	tlsDirectory string
	// address is the listen address of metrics, /healthz and /readyz.
	address string
	// pprofAddress is the listen address of profiles; empty to serve none.
	pprofAddress string
	// own identifies the process's pod, which holds the leader's Lease.
	own      k8s.Identity
	election electionOptions
	// keepVMIP retains the addresses of KubeVirt's virtual machines.
	keepVMIP bool
	// membership, clusterAccess and portSecurity are defaults of objects that do not set their own (v1alpha1.Tenancy).
	membership    v1alpha1.Membership
	clusterAccess kubeovnv1.ClusterAccess
	portSecurity  kubeovnv1.PortSecurity
}

// electionOptions are the parameters of leader election (coordination.k8s.io/v1, Lease).
type electionOptions struct {
	enabled                                   bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

func newControllerCommand() *cobra.Command {
	var o controllerOptions
	var pods, joins, services string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Turns network resources and Kubernetes objects into the OVN northbound database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := setLogger(); err != nil {
				return err
			}
			if err := o.parse(pods, joins, services); err != nil {
				return err
			}
			return runController(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&pods, "pod-cidrs", "10.16.0.0/16", "addresses of the subnet ovn-default, one CIDR per family")
	f.StringVar(&joins, "join-cidrs", "", "addresses of the subnet join, one CIDR per family of --pod-cidrs (default 100.64.0.0/16, fd00:100:64::/112)")
	f.StringVar(&services, "service-cidrs", "10.96.0.0/12", "the API server's --service-cluster-ip-range")
	f.StringVar(&o.tlsDirectory, "tls-dir", "/etc/kiln/tls", "directory of tls.crt, tls.key and ca.crt for the northbound database")
	f.StringVar(&o.address, "address", ":10660", "where metrics, /healthz and /readyz are served")
	f.StringVar(&o.pprofAddress, "pprof-address", "", "where profiles are served; empty for nowhere")
	f.BoolVar(&o.keepVMIP, "keep-vm-ip", true, "keep the addresses of KubeVirt's virtual machines while these exist")
	f.StringVar((*string)(&o.membership), "membership", cmp.Or(os.Getenv("KILN_MEMBERSHIP"), string(v1alpha1.MembershipGranted)),
		"which namespaces may name custom VPCs, private subnets and IPPools with namespaces: Granted (listed namespaces) or Open (every namespace)")
	f.StringVar((*string)(&o.clusterAccess), "cluster-access", cmp.Or(os.Getenv("KILN_CLUSTER_ACCESS"), string(kubeovnv1.ClusterAccessNone)), "clusterAccess of VPCs that do not set theirs: None or Services")
	f.StringVar((*string)(&o.portSecurity), "port-security", cmp.Or(os.Getenv("KILN_PORT_SECURITY"), string(kubeovnv1.PortSecurityEnforced)), "portSecurity of subnets that do not set theirs: Enforced or Requested")
	f.BoolVar(&o.election.enabled, "leader-elect", true, "work only while holding the Lease kube-ovn-controller")
	f.DurationVar(&o.election.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a Lease that is not renewed holds others off")
	f.DurationVar(&o.election.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long the leader tries to renew before it gives up")
	f.DurationVar(&o.election.retryPeriod, "leader-elect-retry-period", 2*time.Second, "how long to wait between tries to take or renew the Lease")
	return cmd
}

// parse parses the CIDR flags, checks the enumerated flags, and reads the process's identity from the environment.
func (o *controllerOptions) parse(pods, joins, services string) error {
	for _, flag := range []struct {
		name, value string
		to          *[]netip.Prefix
	}{
		{"--pod-cidrs", pods, &o.podCIDRs}, {"--join-cidrs", joins, &o.joinCIDRs}, {"--service-cidrs", services, &o.serviceCIDRs},
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
		{"--membership", string(o.membership), []string{string(v1alpha1.MembershipGranted), string(v1alpha1.MembershipOpen)}},
		{"--cluster-access", string(o.clusterAccess), []string{string(kubeovnv1.ClusterAccessNone), string(kubeovnv1.ClusterAccessServices)}},
		{"--port-security", string(o.portSecurity), []string{string(kubeovnv1.PortSecurityEnforced), string(kubeovnv1.PortSecurityRequested)}},
	} {
		if !slices.Contains(flag.choices, flag.value) {
			return fmt.Errorf("%s is %q: use one of %s", flag.name, flag.value, strings.Join(flag.choices, ", "))
		}
	}
	if len(o.podCIDRs) == 0 {
		return errors.New("--pod-cidrs is empty: pods need addresses")
	}
	if len(o.joinCIDRs) == 0 {
		for _, cidr := range o.podCIDRs {
			o.joinCIDRs = append(o.joinCIDRs, defaultJoinCIDRs[ipfamily.Of(cidr.Addr())])
		}
	}
	if ipfamily.Protocol(o.joinCIDRs) != ipfamily.Protocol(o.podCIDRs) {
		return fmt.Errorf("--join-cidrs %s and --pod-cidrs %s are not of the same families", ipfamily.Join(o.joinCIDRs), ipfamily.Join(o.podCIDRs))
	}
	var err error
	o.own, err = k8s.OwnIdentity()
	return err
}
