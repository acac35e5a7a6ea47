// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress reports the progress of a long command. On a terminal, one changing line has the current steps with their
// durations. Elsewhere, each step has a line at its start and a heartbeat. A finished step has a line with its duration in both cases.
package progress

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	heartbeat = 15 * time.Second
	redraw    = 500 * time.Millisecond
)

// Reporter writes progress lines. Steps may run concurrently.
type Reporter struct {
	out     io.Writer
	columns func() int // width of the terminal; nil if out is none
	every   time.Duration

	mu      sync.Mutex
	running []*step // in the order of their starts
	drawn   bool    // the last line on the terminal is the changing one
}

type step struct {
	name  string
	start time.Time
}

// New returns a Reporter that writes to out.
func New(out io.Writer) *Reporter {
	if f, ok := out.(*os.File); ok && isTerminal(f) {
		return &Reporter{out: out, columns: func() int { return width(f) }, every: redraw}
	}
	return &Reporter{out: out, every: heartbeat}
}

// isTerminal reports whether f is a terminal that can rewrite a line.
func isTerminal(f *os.File) bool { return os.Getenv("TERM") != "dumb" && width(f) > 0 }

// width returns the number of columns of a terminal, or 0 if f is none.
func width(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 { // a terminal without a size, such as a serial console
		return 80
	}
	return int(size.Col)
}

// Step runs f and reports its start, its duration while it runs, and its end. It returns f's error, wrapped with the step's name.
func (r *Reporter) Step(name string, f func() error) error {
	s := &step{name: name, start: time.Now()}
	r.begin(s)
	done := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() { r.beat(s, done) })
	err := f()
	close(done)
	beating.Wait()
	r.end(s, err)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Say writes one line.
func (r *Reporter) Say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line(format, args...)
}

// Output returns a writer for the output of a program that a step runs. It writes whole lines. Close writes the rest.
func (r *Reporter) Output() io.WriteCloser { return &output{report: r} }

func (r *Reporter) begin(s *step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, s)
	if r.columns == nil {
		r.line("  ..  %s", s.name)
	} else {
		r.draw()
	}
}

func (r *Reporter) end(s *step, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(other *step) bool { return other == s })
	verdict := "  ok"
	if err != nil {
		verdict = "FAIL"
	}
	r.line("%s  %s (%s)", verdict, s.name, time.Since(s.start).Round(100*time.Millisecond))
}

func (r *Reporter) beat(s *step, done <-chan struct{}) {
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			r.mu.Lock()
			if r.columns == nil {
				r.line("  ..  %s: still at it after %s", s.name, s.elapsed())
			} else {
				r.draw()
			}
			r.mu.Unlock()
		}
	}
}

func (s *step) elapsed() time.Duration { return time.Since(s.start).Round(time.Second) }

// line writes a line above the changing one.
func (r *Reporter) line(format string, args ...any) {
	r.erase()
	fmt.Fprintf(r.out, format+"\n", args...)
	r.draw()
}

const eraseLine = "\r\x1b[K" // ECMA-48: carriage return, and erase to the end of the line

func (r *Reporter) erase() {
	if r.drawn {
		fmt.Fprint(r.out, eraseLine)
		r.drawn = false
	}
}

// draw writes the changing line of a terminal, if any step runs. It fits in one line of the terminal, because eraseLine erases no more.
func (r *Reporter) draw() {
	if r.columns == nil || len(r.running) == 0 {
		return
	}
	parts := make([]string, 0, len(r.running))
	for _, s := range r.running {
		parts = append(parts, fmt.Sprintf("%s %s", s.elapsed(), s.name))
	}
	text := []rune("  ..  " + strings.Join(parts, " | "))
	if limit := r.columns() - 1; limit > 0 && len(text) > limit {
		text = append(text[:limit-1], '…')
	}
	fmt.Fprint(r.out, eraseLine+string(text))
	r.drawn = true
}

// output writes whole lines with Say.
type output struct {
	report *Reporter
	mu     sync.Mutex
	rest   []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rest = append(o.rest, p...)
	for {
		line, rest, whole := bytes.Cut(o.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		o.report.Say("%s", line)
		o.rest = rest
	}
}

func (o *output) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.rest) > 0 {
		o.report.Say("%s", o.rest)
	}
	o.rest = nil
	return nil
}
