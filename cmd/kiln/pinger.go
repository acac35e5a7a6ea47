// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/kiln-net/kiln/agent/pinger"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// pingerPort is the port of metrics, /healthz and /readyz in the network of the pod.
const pingerPort = 8080

// Values of --mode.
const (
	pingerServer = "server"
	pingerJob    = "job"
)

// pingerFlags are the flags of `kiln pinger`. Those with names and addresses replace fields of the OVNCluster.
type pingerFlags struct {
	mode                                  string
	exitCode                              int
	internalDNS, externalDNS, externalIPs []string
	ports                                 []string
}

func newPingerCommand() *cobra.Command {
	var f pingerFlags
	command := &cobra.Command{
		Use:   "pinger",
		Short: "Check the network from a pod, in rounds or once",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if f.ports != nil {
				return f.checkPorts(command.Context(), command.OutOrStdout())
			}
			o, err := pingerOptions()
			if err != nil {
				return err
			}
			kubeconfig, err := config.GetConfig()
			if err != nil {
				return fmt.Errorf("find the API server: %w", err)
			}
			switch f.mode {
			case pingerServer:
				return f.serve(command.Context(), kubeconfig, o)
			case pingerJob:
				return f.job(command.Context(), kubeconfig, o, command.OutOrStdout())
			}
			return fmt.Errorf("--mode is %q; it is %s or %s", f.mode, pingerServer, pingerJob)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.mode, "mode", pingerServer, "server checks in rounds and serves metrics; job checks once and prints the results")
	flags.IntVar(&f.exitCode, "exit-code", 1, "exit code of a job if a check fails")
	flags.StringSliceVar(&f.internalDNS, "internal-dns", nil, "names of the cluster to resolve, instead of pinger.internalNames of the OVNCluster")
	flags.StringSliceVar(&f.externalDNS, "external-dns", nil, "external names to resolve, instead of pinger.externalNames of the OVNCluster")
	flags.StringSliceVar(&f.externalIPs, "external-address", nil, "external addresses to ping, instead of pinger.externalAddresses of the OVNCluster")
	flags.StringSliceVar(&f.ports, "ports", nil, "check these ports once and nothing else, as in tcp-10.16.0.5-80,udp-10.96.0.10-53")
	return command
}

func (f pingerFlags) checkPorts(ctx context.Context, out io.Writer) error {
	ports := make([]pinger.Port, 0, len(f.ports))
	for _, text := range f.ports {
		port, err := pinger.ParsePort(text)
		if err != nil {
			return err
		}
		ports = append(ports, port)
	}
	return f.exit(pinger.CheckPortsOnce(ctx, ports, out))
}

// exit gives the error of failed checks the exit code of the flags.
func (f pingerFlags) exit(err error) error {
	if failed := (pinger.FailedError{}); errors.As(err, &failed) {
		return exitError{failed, f.exitCode}
	}
	return err
}

// pingerOptions reads the variables of the downward API.
func pingerOptions() (pinger.Options, error) {
	o := pinger.Options{Node: os.Getenv("NODE_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), Address: fmt.Sprintf(":%d", pingerPort)}
	if o.Node == "" || o.Namespace == "" {
		return o, errors.New("the environment variable NODE_NAME or POD_NAMESPACE is empty: it comes from the downward API")
	}
	for name, list := range map[string]*[]netip.Addr{"POD_IPS": &o.PodIPs, "HOST_IPS": &o.HostIPs} {
		addresses, err := ipfamily.ParseAddrs(os.Getenv(name))
		if err != nil {
			return o, fmt.Errorf("the environment variable %s, from the downward API: %w", name, err)
		}
		if len(addresses) == 0 {
			return o, fmt.Errorf("the environment variable %s is empty: it comes from the downward API", name)
		}
		*list = addresses
	}
	return o, nil
}

// settings returns the settings of the OVNCluster, with those that flags replace.
func (f pingerFlags) settings(spec v1alpha1.Pinger) pinger.Settings {
	if f.internalDNS != nil {
		spec.InternalNames = f.internalDNS
	}
	if f.externalDNS != nil {
		spec.ExternalNames = f.externalDNS
	}
	if f.externalIPs != nil {
		spec.ExternalAddresses = f.externalIPs
	}
	return pinger.SettingsOf(spec)
}

func (f pingerFlags) serve(ctx context.Context, kubeconfig *rest.Config, o pinger.Options) error {
	apply, err := component{
		verbosity:     func(s *v1alpha1.OVNClusterSpec) int32 { return s.Pinger.LogLevel },
		profilingPort: pingerPort + profilingOffset,
	}.observer(ctx)
	if err != nil {
		return err
	}
	mgr, p, err := pinger.NewManager(kubeconfig, o)
	if err != nil {
		return err
	}
	err = observe(ctx, kubeconfig, func(cluster *v1alpha1.OVNCluster) {
		apply(cluster)
		p.Set(f.settings(cluster.Spec.Pinger))
	})
	if err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

// clusterTimeout bounds the read of the OVNCluster by a job, which can check the network without it.
const clusterTimeout = 5 * time.Second

func (f pingerFlags) job(ctx context.Context, kubeconfig *rest.Config, o pinger.Options, out io.Writer) error {
	reader, err := pinger.NewReader(kubeconfig)
	if err != nil {
		return err
	}
	p, err := pinger.New(kubeconfig, o, reader)
	if err != nil {
		return err
	}
	read, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	var cluster v1alpha1.OVNCluster
	if err := reader.Get(read, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &cluster); err != nil {
		fmt.Fprintf(out, "the OVNCluster cannot be read, so its targets are not checked: %v\n", err)
	}
	return f.exit(p.Job(ctx, f.settings(cluster.Spec.Pinger), out))
}
