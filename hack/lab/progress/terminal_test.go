// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// screen is what a terminal shows: it applies the line feed, the carriage return and the erasure of a line.
type screen struct {
	mu     sync.Mutex
	lines  []string
	column int
}

func newScreen() *screen { return &screen{lines: []string{""}} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := string(p); rest != ""; {
		last := &s.lines[len(s.lines)-1]
		if after, found := strings.CutPrefix(rest, "\x1b[K"); found {
			*last, rest = string([]rune(*last)[:s.column]), after
			continue
		}
		r := []rune(rest)[0]
		rest = rest[len(string(r)):]
		switch r {
		case '\n':
			s.lines, s.column = append(s.lines, ""), 0
		case '\r':
			s.column = 0
		default:
			shown := []rune(*last)
			*last = string(append(shown[:s.column], append([]rune{r}, shown[min(s.column+1, len(shown)):]...)...))
			s.column++
		}
	}
	return len(p), nil
}

func (s *screen) shown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.lines...)
}

func onScreen(columns int) (*Reporter, *screen) {
	s := newScreen()
	return &Reporter{out: s, columns: func() int { return columns }, every: time.Millisecond}, s
}

func TestATerminalShowsTheCurrentStepsInOneLine(t *testing.T) {
	r, s := onScreen(80)
	err := r.Step("build the programs", func() error {
		return r.Step("make the root file system", func() error {
			if got := s.shown(); len(got) != 1 || got[0] != "  ..  0s build the programs | 0s make the root file system" {
				t.Errorf("the terminal shows %q", got)
			}
			r.Say("      a message")
			if got := s.shown(); len(got) != 2 || got[0] != "      a message" || !strings.HasPrefix(got[1], "  ..  0s build the programs | ") {
				t.Errorf("after a message the terminal shows %q", got)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	got := s.shown()
	for i, want := range []string{"      a message", "  ok  make the root file system (", "  ok  build the programs (", ""} {
		if len(got) != 4 || !strings.HasPrefix(got[i], want) {
			t.Fatalf("at the end the terminal shows %q, want line %d to begin with %q", got, i, want)
		}
	}
	if got[3] != "" {
		t.Errorf("the changing line is left: %q", got[3])
	}
}

func TestTheLineOfATerminalChangesWhileAStepRuns(t *testing.T) {
	out := page{mark: "1s wait", heard: make(chan struct{})}
	r := &Reporter{out: &out, columns: func() int { return 80 }, every: time.Millisecond}
	if err := r.Step("wait", func() error { <-out.heard; return nil }); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 1 {
		t.Errorf("%d lines, want that of the end only:\n%q", lines, out.String())
	}
}

func TestTheLineFitsTheTerminal(t *testing.T) {
	r, s := onScreen(30)
	_ = r.Step("a step whose name is longer than the terminal is wide", func() error {
		if got := s.shown(); len(got) != 1 || len([]rune(got[0])) > 29 || !strings.HasPrefix(got[0], "  ..  0s a step") || !strings.HasSuffix(got[0], "…") {
			t.Errorf("the terminal shows %q", got)
		}
		return nil
	})
}

func TestAFailedStepOnATerminal(t *testing.T) {
	r, s := onScreen(80)
	_ = r.Step("unpack", func() error { return errors.New("disk full") })
	if got := s.shown(); len(got) != 2 || !strings.HasPrefix(got[0], "FAIL  unpack (") || got[1] != "" {
		t.Errorf("the terminal shows %q", got)
	}
}

func TestOutputIsWrittenInWholeLines(t *testing.T) {
	r, s := onScreen(80)
	_ = r.Step("compile", func() error {
		out := r.Output()
		for _, part := range []string{"go: down", "loading a\ngo: downloading b\nthe ", "end"} {
			fmt.Fprint(out, part)
		}
		return out.Close()
	})
	got := strings.Join(s.shown(), "\n")
	if !strings.HasPrefix(got, "go: downloading a\ngo: downloading b\nthe end\n  ok  compile (") {
		t.Errorf("the terminal shows\n%s", got)
	}
}

func TestOnlyATerminalHasAChangingLine(t *testing.T) {
	t.Setenv("TERM", "xterm")
	terminal := pseudoTerminal(t, 123)
	r := New(terminal)
	if r.columns == nil || r.columns() != 123 {
		t.Error("a terminal of 123 columns is not recognized")
	}
	file, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if New(file).columns != nil || New(&bytes.Buffer{}).columns != nil {
		t.Error("a file or a buffer is taken for a terminal")
	}
	t.Setenv("TERM", "dumb")
	if New(terminal).columns != nil {
		t.Error("a dumb terminal cannot rewrite a line")
	}
}

// pseudoTerminal returns a terminal of a width (pts(4)).
func pseudoTerminal(t *testing.T, columns uint16) *os.File {
	t.Helper()
	controller, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = controller.Close() })
	if err := unix.IoctlSetPointerInt(int(controller.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetUint32(int(controller.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return terminal
}
