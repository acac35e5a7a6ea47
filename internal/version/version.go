// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version is how processes report the versions of the programs that they run.
package version

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
)

// Development is the version of programs that are not of a release.
const Development = "dev"

// Kiln is this program's version: the tag of its image. The image build sets it.
var Kiln = Development

// Path is the HTTP path of versions, on the address of the probes.
const Path = "/version"

// Programs are the versions of the programs that one pod runs; empty for programs that it does not run.
type Programs struct {
	Kiln        string `json:"kiln,omitempty"`
	OVN         string `json:"ovn,omitempty"`
	OpenVSwitch string `json:"openVSwitch,omitempty"`
}

// Own returns the versions of a process that runs no daemons.
func Own(context.Context) (Programs, error) { return Programs{Kiln: Kiln}, nil }

// OfDaemon returns the version from a daemon's response to the control command `version`, whose first line is "ovn-northd
// 25.03.0" or "ovs-vswitchd (Open vSwitch) 3.5.0" (ovs-appctl(8)).
func OfDaemon(answer string) string {
	line, _, _ := strings.Cut(answer, "\n")
	words := strings.Fields(line)
	if len(words) < 2 {
		return ""
	}
	return words[len(words)-1]
}

// reportTimeout bounds the answers of the daemons.
const reportTimeout = 5 * time.Second

// Handler serves the result of the given function as JSON, or its error with status 503. All callers share the result.
func Handler(tell func(context.Context) (Programs, error)) http.Handler {
	shared := httpserver.ShareResult(reportTimeout, tell)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		programs, err := shared()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(programs) // fails only when the client has disconnected
	})
}

// Get queries the process at an address.
func Get(ctx context.Context, address netip.AddrPort) (Programs, error) {
	var programs Programs
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address.String()+Path, http.NoBody)
	if err != nil {
		return programs, fmt.Errorf("make request: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return programs, fmt.Errorf("ask for versions: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return programs, fmt.Errorf("ask %s for versions: %s", address, response.Status)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<10)).Decode(&programs); err != nil {
		return programs, fmt.Errorf("decode the versions of %s: %w", address, err)
	}
	return programs, nil
}

// client keeps no connections, because each process is queried once. It follows no redirects.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}
