// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// order is the order in which a job prints its results.
var order = []Check{
	CheckOpenVSwitch, CheckOVNController, CheckSouthbound, CheckPorts, CheckAPIServer, CheckInternalDNS, CheckExternalDNS, CheckPod, CheckNode, CheckExternal, CheckPort,
}

// FailedError is the error of a job whose checks did not all pass.
type FailedError struct{ Failed, Checks int }

func (e FailedError) Error() string { return fmt.Sprintf("%d of %d checks failed", e.Failed, e.Checks) }

// Job runs one round, writes a line for each check to w, and returns a FailedError if a check failed. If ports are not bound, it runs another
// round a few seconds later: they may be new.
func (p *Pinger) Job(ctx context.Context, s Settings, w io.Writer) error {
	p.settle = jobSettleTime
	results := p.round(ctx, s)
	if len(p.unbound) > 0 {
		timer := time.NewTimer(p.settle)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
			results = p.round(ctx, s)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	return report(results, w)
}

// report writes the results of a job, and returns a FailedError if a check failed.
func report(results []Result, w io.Writer) error {
	slices.SortStableFunc(results, func(a, b Result) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Check), slices.Index(order, b.Check)), cmp.Compare(a.Target, b.Target))
	})
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	failed := FailedError{Checks: len(results)}
	for _, r := range results {
		verdict, detail := "ok", r.Detail
		if r.Latency > 0 {
			detail = strings.TrimSpace(fmt.Sprintf("%.3f ms  %s", milliseconds(r.Latency), r.Detail))
		}
		if r.Err != nil {
			verdict, detail = "FAILED", r.Err.Error()
			failed.Failed++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", verdict, r.Check, r.Target, detail)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if failed.Failed > 0 {
		return failed
	}
	return nil
}
