// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func TestStartTimeOfStatLines(t *testing.T) {
	const tail = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	cases := map[string]struct {
		line    string
		want    uint64
		wantErr bool
	}{
		"a plain name":                            {line: "12 (bash)" + tail, want: 4711},
		"a name with spaces and parentheses":      {line: "12 (a) b (c)" + tail, want: 4711},
		"a zombie does not run":                   {line: "12 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711", wantErr: true},
		"a short line is refused":                 {line: "12 (x) S 1", wantErr: true},
		"a line without a name's end is no panic": {line: "12", wantErr: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := startTime(c.line)
			if (err != nil) != c.wantErr || got != c.want {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

func TestKillEndsTheProcessItWasGivenAndNoOther(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	reused := Process{PID: p.PID, Started: p.Started + 1}
	if err := reused.Kill(); err != nil || !p.Alive() {
		t.Fatalf("a process of another start time was killed (%v)", err)
	}
	if err := p.Kill(); err != nil || p.Alive() {
		t.Fatalf("the process lives on (%v)", err)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("killing it again: %v", err)
	}
}

func TestKillPassesOverAThreadWithTheNumberOfAnEndedProcess(t *testing.T) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if tid == os.Getpid() {
			continue
		}
		if err := (Process{PID: tid, Started: 1}).Kill(); err != nil {
			t.Errorf("thread %d: %v", tid, err)
		}
		return
	}
	t.Fatal("this process has a single thread")
}

func TestInNetnsFindsThisProcess(t *testing.T) {
	found, err := InNetns("/proc/self/ns/net", "/does/not/exist")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		if p.PID == os.Getpid() {
			return
		}
	}
	t.Errorf("process %d is not among %v", os.Getpid(), found)
}
