// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// Places of netprobe: on nodes, and in containers that mount the directory.
const (
	directory = "/run/kiln-bench"
	program   = directory + "/netprobe"
	port      = 7000 // of servers, and the first one of pods
	ports     = 1000
)

// runner runs a command in a pod or in a network namespace of a node, and returns its standard output.
type runner func(ctx context.Context, command ...string) (string, error)

// path is a measured path, from a client to a server at an address.
type path struct {
	name   string
	client runner
	to     netip.AddrPort
	// reference is the name of the path, of the same family, to which this one is compared.
	reference string
	// loopback says that the client sends to an address of its own machine. Its socket then has the MTU of the loopback interface, so
	// packets of the path's MTU are not measured.
	loopback bool
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// result is what netprobe prints.
type result struct {
	Rate, Lost float64
	Median     float64 `json:"medianMicroseconds"`
	P99        float64 `json:"p99Microseconds"`
}

// modes are the measurements of a path, in the order of the table's columns.
var modes = []string{"stream", "rr", "crr", "packets", "full"}

const heading = "| path | family | Gbit/s | round trips/s | median | p99 | connections/s | packets/s | packets of full MTU/s |\n|---|---|---|---|---|---|---|---|---|\n"

// measure measures paths and prints a line for each. Values of a path with a reference have their ratio to it in parentheses.
func (b *bench) measure(ctx context.Context, paths []path) error {
	done := map[string]map[string]result{}
	for _, p := range paths {
		say("%s, %s", p.name, family(p.to.Addr()))
		results := map[string]result{}
		for _, mode := range modes {
			if mode == "full" && p.loopback {
				continue
			}
			out, err := p.client(ctx, program, mode, p.to.String(), b.each.String())
			if err != nil {
				return fmt.Errorf("%s, %s, %s: %w", p.name, family(p.to.Addr()), mode, err)
			}
			var r result
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				return fmt.Errorf("%s, %s: %w in %q", p.name, mode, err, out)
			}
			results[mode] = r
		}
		done[p.name+family(p.to.Addr())] = results
		fmt.Fprint(b.out, line(p, results, done[p.reference+family(p.to.Addr())]))
	}
	return nil
}

func line(p path, r, reference map[string]result) string {
	ratio := func(value, of float64) string {
		if len(reference) == 0 || of == 0 {
			return ""
		}
		return fmt.Sprintf(" (%.2f)", value/of)
	}
	columns := []string{
		p.name, family(p.to.Addr()),
		fmt.Sprintf("%.2f", r["stream"].Rate/1e9) + ratio(r["stream"].Rate, reference["stream"].Rate),
		fmt.Sprintf("%.0f", r["rr"].Rate) + ratio(r["rr"].Rate, reference["rr"].Rate),
		fmt.Sprintf("%.0f µs", r["rr"].Median),
		fmt.Sprintf("%.0f µs", r["rr"].P99),
		fmt.Sprintf("%.0f", r["crr"].Rate) + ratio(r["crr"].Rate, reference["crr"].Rate),
		fmt.Sprintf("%.0f", r["packets"].Rate) + ratio(r["packets"].Rate, reference["packets"].Rate),
		fmt.Sprintf("%.0f", r["full"].Rate) + ratio(r["full"].Rate, reference["full"].Rate),
	}
	if p.loopback {
		columns[len(columns)-1] = "–"
	}
	return "| " + strings.Join(columns, " | ") + " |\n"
}

// place brings netprobe to the workers and to the outside host.
func (b *bench) place(ctx context.Context) error {
	for _, name := range []string{b.near, b.far, outside} {
		file, err := os.Open(b.probe)
		if err != nil {
			return fmt.Errorf("open netprobe: %w", err)
		}
		script := fmt.Sprintf("mkdir -p %s && cat >%s.new && chmod 755 %[2]s.new && mv %[2]s.new %[2]s", directory, program)
		err = b.lab.Exec(ctx, name, machine.Command{Args: []string{"sh", "-c", script}, Stdin: file, Stderr: os.Stderr})
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("bring netprobe to %s: %w", name, err)
		}
	}
	return nil
}

// on returns a runner in a machine of the lab.
func (b *bench) on(name string) runner {
	return func(ctx context.Context, command ...string) (string, error) {
		return b.lab.Output(ctx, name, command...)
	}
}

// within returns a runner in a network namespace of a machine.
func (b *bench) within(name, netns string) runner {
	return func(ctx context.Context, command ...string) (string, error) {
		return b.lab.Output(ctx, name, append([]string{"ip", "netns", "exec", netns}, command...)...)
	}
}

// serve starts a server of netprobe that outlives the call. It does nothing if one runs there.
func serve(ctx context.Context, in runner) error {
	script := fmt.Sprintf("pgrep -f 'netprobe serve' --ns $$ --nslist net >/dev/null || setsid %s serve %d >/dev/null 2>&1 </dev/null &", program, port)
	if _, err := in(ctx, "sh", "-c", script); err != nil {
		return fmt.Errorf("start a server: %w", err)
	}
	return nil
}
