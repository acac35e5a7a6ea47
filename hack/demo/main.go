// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo installs Kiln in a lab that is up and checks it with real packets: it installs the operator, applies one OVNCluster,
// waits until that is Available, and checks that pods, nodes, Services and the outside host reach one another. It exits non-zero
// when a check fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/internal/testing/prepared"
	"github.com/kiln-net/kiln/test/checks"
	"github.com/kiln-net/kiln/test/cluster"
)

const namespace = "kiln-demo"

func main() {
	families := flag.String("families", cluster.Dual, "families of pods: dual, ipv4 or ipv6")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *families); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop has nothing left to do
	}
}

func run(ctx context.Context, families string) error {
	l, err := lab.Open("")
	if err != nil {
		return err
	}
	c, err := cluster.Connect(l.Kubeconfig())
	if err != nil {
		return err
	}
	if err := install(ctx, l, c, families); err != nil {
		return err
	}
	env, err := checks.InLab(l, c, namespace)
	if err != nil {
		return err
	}
	say("starting pods on %s and %s, and checking", env.Near, env.Far)
	failed, total := 0, 0
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	err = checks.Run(ctx, env, func(r checks.Result) {
		total++
		if r.Err != nil {
			failed++
		}
		printResult(os.Stdout, r)
	})
	if err != nil {
		return err
	}
	lookAround(l)
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, total)
	}
	fmt.Printf("\n%d checks passed.\n", total)
	return nil
}

func install(ctx context.Context, l *lab.Cluster, c *cluster.Cluster, families string) error {
	spec, err := cluster.LabSpec(l, families)
	if err != nil {
		return err
	}
	start := time.Now()
	say("installing the operator: kubectl apply --server-side -k hack/lab/manifests")
	if err := cluster.ApplyManifests(ctx, l.Kubeconfig(), "hack/lab/manifests"); err != nil {
		return err
	}
	say("applying the OVNCluster: %s datapath, pods in %s, tunnels on %s", spec.Nodes.Datapath, strings.Join(spec.Network.PodCIDRs, " and "), spec.Nodes.TunnelInterface)
	if err := c.ApplyOVNCluster(ctx, spec); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err = c.WaitAvailable(ctx, func(message string) { say("  %s", message) })
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w (look: KUBECONFIG=%s kubectl get ovncluster default -o yaml; kubectl get pods -n %s)", err, l.Kubeconfig(), cluster.Namespace)
	}
	if err != nil {
		return err
	}
	say("OVNCluster Available after %s", time.Since(start).Round(100*time.Millisecond))
	return nil
}

func say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func lookAround(l *lab.Cluster) {
	kubectl, _ := prepared.File("bin/kubectl") // the demo has run it
	fmt.Printf(`
Look around:
  export KUBECONFIG=%s PATH=$PATH:%s
  kubectl get ovncluster default -o wide; kubectl get subnet,vpc,ip
  kubectl get pods -A -o wide
  kubectl -n %s exec ovn-central-nb-0 -- ovn-nbctl show
  kubectl -n %s exec ovn-central-sb-0 -- ovn-sbctl show
  kubectl -n %s exec -it client -- bash
  go run ./hack/lab exec worker-1 -- ip route
  make demo-down
`, l.Kubeconfig(), filepath.Dir(kubectl), cluster.Namespace, cluster.Namespace, namespace)
}
