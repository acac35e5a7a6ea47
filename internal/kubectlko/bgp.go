// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kiln-net/kiln/internal/node/bgpstate"
)

// speaker is the component of the pods that announce routes.
const speaker = "kube-ovn-speaker"

// bgp returns the command `kubectl ko bgp`.
func (p *plugin) bgp(source func() clientcmd.ClientConfig) *cobra.Command {
	var routes bool
	cmd := &cobra.Command{
		Use: "bgp [NODE]", Short: "BGP peers, announced prefixes and refused objects of all speakers, or of that on a node",
		Long: "Prints the state of the pods of kube-ovn-speaker (spec.speaker of the OVNCluster).",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: p.completeNodes(source),
		RunE: func(cmd *cobra.Command, args []string) error { return p.printBGP(cmd.Context(), args, routes) },
	}
	cmd.Flags().BoolVar(&routes, "routes", false, "with the routes that each session announces and receives")
	return cmd
}

func (p *plugin) printBGP(ctx context.Context, nodes []string, routes bool) error {
	var pods []corev1.Pod
	if len(nodes) > 0 {
		pod, err := p.podOn(ctx, speaker, nodes[0])
		if err != nil {
			return fmt.Errorf("%w: see spec.speaker of the OVNCluster", err)
		}
		pods = append(pods, *pod)
	} else {
		var err error
		if pods, err = p.podsOf(ctx, speaker); err != nil {
			return err
		}
	}
	if len(pods) == 0 {
		return errors.New("no pod of kube-ovn-speaker runs: set spec.speaker of the OVNCluster, and label nodes with ovn.kubernetes.io/bgp=true")
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	argv := []string{"kiln", "speaker", "state"}
	if routes {
		argv = append(argv, "--routes")
	}
	var errs []error
	for i := range pods {
		var text bytes.Buffer
		var state bgpstate.State
		err := p.run(ctx, &pods[i], argv, &text)
		if err == nil {
			err = json.Unmarshal(text.Bytes(), &state)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", pods[i].Spec.NodeName, err))
			continue
		}
		errs = append(errs, writeBGP(p.out, state))
	}
	return errors.Join(errs...)
}

// writeBGP prints the state of one speaker. Names of objects come from tenants.
func writeBGP(out io.Writer, s bgpstate.State) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "node %s\n", s.Node)
	fmt.Fprintf(w, "  PEER\tAS\tSESSION\tBFD\tANNOUNCED\tRECEIVED\tMESSAGE\n")
	for _, p := range s.Peers {
		fmt.Fprintf(w, "  %s\t%d\t%s\t%s\t%s\t%s\t%s\n", p.Address, p.ASN, p.Session, cmp.Or(p.BFD, "-"), byFamily(p.Announced), byFamily(p.Received), plain(p.Message))
	}
	if err := w.Flush(); err != nil { // the columns of the next lines are others
		return fmt.Errorf("write: %w", err)
	}
	writeRoutes := func(title string, p bgpstate.Peer, routes []bgpstate.Route) {
		for _, r := range routes {
			fmt.Fprintf(w, "  %s %s\t%s\tvia %s\n", title, p.Address, r.Prefix, r.NextHop)
		}
	}
	for _, p := range s.Peers {
		writeRoutes("to", p, p.AnnouncedRoutes)
		writeRoutes("from", p, p.ReceivedRoutes)
	}
	for _, p := range s.Prefixes {
		fmt.Fprintf(w, "  announced\t%s\t%s\n", p.Prefix, plain(p.Object))
	}
	for _, r := range s.Refused {
		fmt.Fprintf(w, "  refused\t%s\t%s\n", plain(r.Object), plain(r.Reason))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// byFamily returns numbers of routes such as `ipv4 2, ipv6 1`.
func byFamily(counts map[string]uint64) string {
	var parts []string
	for _, family := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", family, counts[family]))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
