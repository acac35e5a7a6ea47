// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func TestLoggersFollowLevelAndFormat(t *testing.T) {
	var out bytes.Buffer
	l := &processLog{}
	log := l.logger(&out).WithName("pods").WithValues("pod", "a\n\"b\"") // made before the changes
	decide := func() string {
		out.Reset()
		log.V(1).Info("gave an address", "address", "10.16.0.2")
		return out.String()
	}
	if got := decide(); got != "" || log.V(1).Enabled() {
		t.Errorf("at level 0: %q", got)
	}
	l.set(1, v1alpha1.LogJSON)
	var line map[string]any
	if err := json.Unmarshal([]byte(decide()), &line); err != nil {
		t.Fatal(err)
	}
	if line["logger"] != "pods" || line["msg"] != "gave an address" || line["pod"] != "a\n\"b\"" || line["address"] != "10.16.0.2" {
		t.Errorf("in JSON: %v", line)
	}
	l.set(1, v1alpha1.LogText)
	if got := decide(); !strings.HasSuffix(got, "\tpods\tgave an address\t"+`{"pod": "a\n\"b\"", "address": "10.16.0.2"}`+"\n") {
		t.Errorf("in text: %q", got)
	}
	l.set(0, v1alpha1.LogText)
	if got := decide(); got != "" || log.V(1).Enabled() {
		t.Errorf("at level 0 again: %q", got)
	}
}

func TestTheEnvironmentGivesTheLeastVerbosity(t *testing.T) {
	l := &processLog{least: 2}
	log := l.logger(io.Discard)
	if l.set(1, ""); !log.V(2).Enabled() || log.V(3).Enabled() {
		t.Error("the environment has another verbosity")
	}
	if l.set(3, ""); !log.V(3).Enabled() {
		t.Error("the OVNCluster has another verbosity")
	}
}

// TestDecisionsAreComplete: of equal messages at the level info a sample is written, of decisions all.
func TestDecisionsAreComplete(t *testing.T) {
	const messages = 1000
	for level, want := range []func(lines int) bool{
		func(lines int) bool { return lines < messages/2 },
		func(lines int) bool { return lines == messages },
		func(lines int) bool { return lines == messages },
	} {
		var out bytes.Buffer
		l := &processLog{}
		log := l.logger(&out)
		l.set(2, v1alpha1.LogJSON)
		for i := range messages {
			log.V(level).Info("the same", "i", i)
		}
		if lines := bytes.Count(out.Bytes(), []byte("\n")); !want(lines) {
			t.Errorf("%d of %d messages of verbosity %d", lines, messages, level)
		}
	}
}

// BenchmarkDisabled is what a message that is not written costs.
func BenchmarkDisabled(b *testing.B) {
	log, address := (&processLog{}).logger(io.Discard).WithValues("pod", "a"), netip.MustParseAddr("10.16.0.2")
	for b.Loop() {
		if log := log.V(1); log.Enabled() {
			log.Info("gave an address", "address", address.String())
		}
	}
}

func TestProfilesAreServedWhileTheyAreEnabled(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	p := &profiles{port: address.Port}
	p.set(t.Context(), v1alpha1.ProfilingEnabled) // while another process has the port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	get := func() (string, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/goroutine?debug=1", address), nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
	for range 2 {
		p.set(t.Context(), v1alpha1.ProfilingEnabled)
		p.set(t.Context(), v1alpha1.ProfilingEnabled)
		eventually.Wait{For: "a profile"}.Succeeds(t, func() error {
			body, err := get()
			if err == nil && !strings.Contains(body, "goroutine profile: total") {
				err = fmt.Errorf("%q", body)
			}
			return err
		})
		p.set(t.Context(), v1alpha1.ProfilingDisabled)
		if body, err := get(); err == nil {
			t.Errorf("it is disabled, and answers %q", body)
		}
	}
}

// TestTheOVNClusterSetsLevels: each process has its own verbosity in the OVNCluster, and the levels of its daemons.
func TestTheOVNClusterSetsLevels(t *testing.T) {
	spec := v1alpha1.OVNClusterSpec{}
	spec.Logging.OperatorLevel, spec.Controller.LogLevel, spec.Central.LogLevel, spec.Agent.LogLevel = 1, 2, 3, 4
	for want, get := range map[int32]func(*v1alpha1.OVNClusterSpec) int32{
		1: operatorComponent.verbosity, 2: controllerComponent.verbosity, 3: centralVerbosity, 4: agentVerbosity,
	} {
		if got := get(&spec); got != want {
			t.Errorf("got the verbosity %d, want %d", got, want)
		}
	}
}
