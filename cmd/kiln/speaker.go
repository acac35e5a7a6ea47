// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/kiln-net/kiln/agent/speaker"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// speakerHealthPort is the port of metrics, /healthz, /readyz and /state.
const speakerHealthPort = 10667

func newSpeakerCommand() *cobra.Command {
	var passwords string
	var listen bool
	command := &cobra.Command{
		Use:   "speaker",
		Short: "Announce pods, subnets and Services of a node by BGP",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return runSpeaker(command.Context(), passwords, listen)
		},
	}
	command.Flags().StringVar(&passwords, "passwords", "/etc/kiln/passwords", "directory of the passwords of peers: SECRET/KEY")
	command.Flags().BoolVar(&listen, "listen", false, "listen on port 179 for peers with connection Passive, which needs root and NET_BIND_SERVICE")
	command.AddCommand(newSpeakerStateCommand())
	return command
}

func runSpeaker(ctx context.Context, passwords string, listen bool) error {
	access := newAccess(speakerHealthPort)
	o := speaker.Options{
		Node: os.Getenv("NODE_NAME"), Pod: os.Getenv("POD_NAME"), Namespace: os.Getenv("POD_NAMESPACE"),
		Passwords: passwords, Address: fmt.Sprintf(":%d", speakerHealthPort), Access: access.Handler,
	}
	if listen {
		o.Port = v1alpha1.DefaultBGPPort
	}
	if o.Node == "" || o.Pod == "" || o.Namespace == "" {
		return errors.New("the environment variable NODE_NAME, POD_NAME or POD_NAMESPACE is empty: it comes from the downward API")
	}
	apply, err := component{
		verbosity:     func(s *v1alpha1.OVNClusterSpec) int32 { return speakerVerbosity(s.Speaker) },
		profilingPort: speakerHealthPort + profilingOffset,
		access:        access,
	}.observer(ctx)
	if err != nil {
		return err
	}
	kubeconfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	mgr, r, err := speaker.NewManager(kubeconfig, o)
	if err != nil {
		return err
	}
	err = observe(ctx, kubeconfig, func(cluster *v1alpha1.OVNCluster) {
		apply(cluster)
		r.Set(speaker.Enabled(cluster), cluster.Spec.Services.LoadBalancerPools...)
	})
	if err != nil {
		return err
	}
	return speaker.Run(ctx, mgr, r)
}

func speakerVerbosity(s *v1alpha1.Speaker) int32 {
	if s == nil {
		return 0
	}
	return s.LogLevel
}

// stateTimeout bounds the request of the state.
const stateTimeout = 10 * time.Second

func newSpeakerStateCommand() *cobra.Command {
	var routes bool
	command := &cobra.Command{
		Use:   "state",
		Short: "Print the peers and prefixes of the speaker on this node as JSON",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return printSpeakerState(command.Context(), routes, command.OutOrStdout())
		},
	}
	command.Flags().BoolVar(&routes, "routes", false, "with the routes of each session")
	return command
}

func printSpeakerState(ctx context.Context, routes bool, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	url := fmt.Sprintf("http://127.0.0.1:%d%s", speakerHealthPort, speaker.StatePath)
	if routes {
		url += "?" + speaker.RoutesParameter
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("request the state: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("request the state: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	if err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	_, err = out.Write(body)
	return err
}
