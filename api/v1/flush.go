// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// MaxConnectionFlushes is the largest number of requests in the annotation flush_connections of a node.
const MaxConnectionFlushes = 256

// maxFlushID is the maximum length of an ID in bytes.
const maxFlushID = 64

// ConnectionFlush is a request to a node: once it has no flow of a former translation, it deletes the connections that it tracks for the translation, and lists ID in
// the annotation flushed_connections. The annotation flush_connections is a JSON list of such requests.
//
// +kubebuilder:object:generate=false
type ConnectionFlush struct {
	ID string `json:"id"`
	// Address is the external address, Internal the address that it was translated to, or the CIDR whose packets left with it.
	Address  netip.Addr   `json:"address"`
	Internal netip.Prefix `json:"internal"`
	// Source is true for a translation of sources only.
	Source bool `json:"source,omitempty"`
	// Protocol (tcp, udp or sctp) and Port identify the port of the address that led to Internal.
	Protocol string `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`
}

var flushID = regexp.MustCompile(`^[a-zA-Z0-9-]+$`)

func (f ConnectionFlush) validate() error {
	switch {
	case len(f.ID) > maxFlushID || !flushID.MatchString(f.ID):
		return fmt.Errorf("%q is no ID", f.ID)
	case !f.Address.IsValid() || f.Address.Zone() != "" || !f.Internal.IsValid() || f.Address.Is4() != f.Internal.Addr().Is4():
		return fmt.Errorf("%s and %s are no addresses of one family", f.Address, f.Internal)
	case (f.Protocol == "") != (f.Port == 0) || !slices.Contains([]string{"", "tcp", "udp", "sctp"}, f.Protocol):
		return fmt.Errorf("%q and %d are no protocol and port", f.Protocol, f.Port)
	}
	return nil
}

// ParseConnectionFlushes parses the annotation flush_connections. It returns the valid requests, and an error about the others.
func ParseConnectionFlushes(text string) ([]ConnectionFlush, error) {
	if text == "" {
		return nil, nil
	}
	var all []ConnectionFlush
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("decode requests: %w", err)
	}
	if len(all) > MaxConnectionFlushes {
		return nil, fmt.Errorf("%d requests, more than %d", len(all), MaxConnectionFlushes)
	}
	var invalid []error
	valid := slices.DeleteFunc(all, func(f ConnectionFlush) bool {
		err := f.validate()
		if err != nil {
			invalid = append(invalid, err)
		}
		return err != nil
	})
	return valid, errors.Join(invalid...)
}

// FormatConnectionFlushes is the annotation flush_connections; empty without requests.
func FormatConnectionFlushes(requests []ConnectionFlush) (string, error) {
	if len(requests) == 0 {
		return "", nil
	}
	text, err := json.Marshal(requests)
	return string(text), err
}

// FlushedConnections returns the IDs in the annotation flushed_connections. It skips a text that is longer than the IDs of MaxConnectionFlushes requests: no agent
// writes one.
func FlushedConnections(text string) []string {
	if len(text) > MaxConnectionFlushes*(maxFlushID+1) {
		return nil
	}
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
