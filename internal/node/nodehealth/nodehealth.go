// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodehealth is how `kiln ovs` reports the state of its node's daemons and ports to kube-ovn-pinger, which has no access to their sockets.
package nodehealth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"time"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
)

// Path is the HTTP path of the report, on the address of the probes of `kiln ovs`.
const Path = "/node"

// Port is the port of the probes of `kiln ovs`.
const Port = 10672

// Report is the state of one node. It names no pod, because every client that reaches the node can read it.
type Report struct {
	// OpenVSwitch is the reason why ovsdb-server or ovs-vswitchd does not answer; empty when both answer.
	OpenVSwitch string `json:"openVSwitch,omitempty"`
	// OVNController is the reason why ovn-controller does not answer; empty when it answers.
	OVNController string `json:"ovnController,omitempty"`
	// Southbound is the reason why ovn-controller is not connected to the southbound database; empty when it is, or when OVNController is set.
	Southbound string `json:"southbound,omitempty"`
	// Ports is the number of OVN's ports on the node. Unbound are the UUIDs of the rows of table Interface whose port ovn-controller has not bound:
	// each port is among them until its first flows are installed. Both are empty while the database does not answer.
	Ports   int      `json:"ports"`
	Unbound []string `json:"unbound,omitempty"`
	// Portless are the host's ends of veths to containers of which Open vSwitch has no port, so that the pod has no network. During the start and the
	// end of a pod its veth is among them. The names are hashes. It is empty while the database does not answer.
	Portless []string `json:"portless,omitempty"`
}

// IsPodLink reports whether a link of the host has the name of a veth to a container, which agent/sandbox makes.
func IsPodLink(name string) bool { return podLink(name) }

var podLink = regexp.MustCompile(`^[0-9a-f]{12}_[hg]$`).MatchString

// maxReport bounds a report, in bytes.
const maxReport = 1 << 20

// reportTimeout bounds a report. Each daemon has its own, shorter limit.
const reportTimeout = 10 * time.Second

// Handler serves the result of report as JSON. All callers share the result.
func Handler(report func(context.Context) Report) http.Handler {
	shared := httpserver.Share(reportTimeout, report)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(shared()) // fails only when the client has disconnected
	})
}

// Get requests the report of the node at an address.
func Get(ctx context.Context, address netip.AddrPort) (Report, error) {
	var report Report
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address.String()+Path, http.NoBody)
	if err != nil {
		return report, fmt.Errorf("make request: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return report, fmt.Errorf("request the report of ovs-ovn: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return report, fmt.Errorf("request the report of ovs-ovn at %s: %s", address, response.Status)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, maxReport)).Decode(&report); err != nil {
		return report, fmt.Errorf("decode the report of ovs-ovn at %s: %w", address, err)
	}
	return report, nil
}

// client opens a connection for each request, so that a report is also a check of the path to the node. It follows no redirects.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}
