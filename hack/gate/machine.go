// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// A machine is idle if its CPUs do this share of work at most while the gate itself does nothing, and if its hypervisor takes at most that share of the time from
// it during a stage.
const (
	mostBusy   = 0.2
	mostStolen = 0.05
)

// idlePause is the time in which idle measures.
const idlePause = 2 * time.Second

// cpuTimes are the times of all CPUs since the start of the machine, in ticks (proc_stat(5)).
type cpuTimes struct{ busy, stolen, all float64 }

// idle reports whether the machine is idle now.
func idle(ctx context.Context) bool {
	before := readCPU()
	select {
	case <-ctx.Done():
	case <-time.After(idlePause):
	}
	return readCPU().busySince(before) <= mostBusy
}

func readCPU() cpuTimes {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	return parseCPU(line)
}

// parseCPU reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq steal guest guest_nice. Guests' times are parts of users' times.
func parseCPU(line string) cpuTimes {
	var t cpuTimes
	fields := strings.Fields(line)
	for i := 1; i < min(len(fields), 9); i++ {
		ticks, _ := strconv.ParseFloat(fields[i], 64)
		t.all += ticks
		switch i {
		case 4, 5: // idle, and waiting for a disk
		case 8:
			t.stolen += ticks
			t.busy += ticks
		default:
			t.busy += ticks
		}
	}
	return t
}

func (t cpuTimes) busySince(before cpuTimes) float64 {
	return share(t.busy-before.busy, t.all-before.all)
}
func (t cpuTimes) stolenSince(before cpuTimes) float64 {
	return share(t.stolen-before.stolen, t.all-before.all)
}

func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}
