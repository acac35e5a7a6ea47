// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command datapath measures Kiln's data plane in a lab that is up, and references in the same run: a pair of interfaces on a Linux bridge and
// on a bridge of Open vSwitch, and a Geneve tunnel without OVN. It prints a table in Markdown, with ratios to the references.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/test/cluster"
)

const namespace = "kiln-datapath"

// bench is one run.
type bench struct {
	lab       *lab.Cluster
	cluster   *cluster.Cluster
	probe     string // the program netprobe on this machine
	each      time.Duration
	endpoints int
	near, far string // workers
	out       io.Writer
}

func main() {
	b := &bench{out: os.Stdout}
	output := ""
	flag.StringVar(&b.probe, "netprobe", "", "path of the program netprobe")
	flag.StringVar(&output, "output", "", "file for the table, in addition to standard output")
	flag.DurationVar(&b.each, "each", 2*time.Second, "duration of each measurement")
	flag.IntVar(&b.endpoints, "endpoints", ports, "endpoints of the large Service, at most this many")
	manifests := flag.String("manifests", "hack/lab/manifests", "manifests of the operator")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx, *manifests, output); err != nil {
		fmt.Fprintln(os.Stderr, "datapath:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop has nothing left to do
	}
}

func (b *bench) run(ctx context.Context, manifests, output string) (err error) {
	if output != "" {
		file, err := os.Create(output)
		if err != nil {
			return fmt.Errorf("make the file of the table: %w", err)
		}
		defer file.Close()
		b.out = io.MultiWriter(os.Stdout, file)
	}
	if b.lab, err = lab.Open(""); err != nil {
		return err
	}
	if b.cluster, err = cluster.Connect(b.lab.Kubeconfig()); err != nil {
		return err
	}
	workers, err := cluster.Workers(b.lab)
	if err != nil {
		return err
	}
	b.near, b.far = workers[0], workers[1]
	spec, err := cluster.LabSpec(b.lab, cluster.Dual)
	if err != nil {
		return err
	}
	say("installing Kiln, %s datapath", spec.Nodes.Datapath)
	if err := b.cluster.Install(ctx, b.lab.Kubeconfig(), manifests, spec, func(message string) { say("  %s", message) }); err != nil {
		return err
	}
	if err := b.place(ctx); err != nil {
		return err
	}
	references, err := b.references(ctx)
	if err != nil {
		return err
	}
	paths, err := b.paths(ctx)
	if err != nil {
		return err
	}
	on, err := paths[0].client(ctx, program, "features", "eth0")
	if err != nil {
		return err
	}
	fmt.Fprintf(b.out, "%s datapath; offloads of pods: %s\n%s", spec.Nodes.Datapath, on, heading)
	if err := b.measure(ctx, append(references, paths...)); err != nil {
		return err
	}
	return b.policies(ctx, paths)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
