// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version is how processes tell the versions of the programs that they run.
package version

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// Kiln is this program's version: the tag of its image, which the image's build sets.
var Kiln = "dev"

// Path is where versions are told, beside the probes.
const Path = "/version"

// Programs are the versions of what one pod runs; empty where it runs no such program.
type Programs struct {
	Kiln        string `json:"kiln,omitempty"`
	OVN         string `json:"ovn,omitempty"`
	OpenVSwitch string `json:"openVSwitch,omitempty"`
}

// Own are the versions of a process that runs no daemons.
func Own(context.Context) (Programs, error) { return Programs{Kiln: Kiln}, nil }

// OfDaemon is the version in a daemon's answer to the control command `version`, whose first line is "ovn-northd 25.03.0" or "ovs-vswitchd (Open vSwitch) 3.5.0"
// (ovs-appctl(8)).
func OfDaemon(answer string) string {
	line, _, _ := strings.Cut(answer, "\n")
	words := strings.Fields(line)
	if len(words) < 2 {
		return ""
	}
	return words[len(words)-1]
}

// Handler answers with what tell returns, or with 503 while that is not known.
func Handler(tell func(context.Context) (Programs, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		programs, err := tell(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(programs) // fails only when the client has gone
	})
}

// Get asks the process at an address.
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

// client keeps no connection: each process is asked once. It goes nowhere else than it was told.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}
