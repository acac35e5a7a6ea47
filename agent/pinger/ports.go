// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Port is a TCP or UDP port of an address.
type Port struct {
	Protocol string // tcp or udp
	Address  netip.AddrPort
}

// ParsePort parses the form of Kube-OVN's plugin: tcp-10.16.0.5-80, udp-fd00::5-53.
func ParsePort(text string) (Port, error) {
	protocol, rest, _ := strings.Cut(text, "-")
	address, port, found := strings.Cut(rest, "-")
	ip, err := netip.ParseAddr(address)
	number, badPort := strconv.ParseUint(port, 10, 16)
	if !found || protocol != "tcp" && protocol != "udp" || err != nil || badPort != nil || number == 0 {
		return Port{}, fmt.Errorf("%q is no port in the form tcp-10.16.0.5-80 or udp-10.16.0.5-53", text)
	}
	return Port{protocol, netip.AddrPortFrom(ip, uint16(number))}, nil
}

// CheckPortsOnce connects to each port, writes a line for each to w, and returns a FailedError if one failed.
func CheckPortsOnce(ctx context.Context, ports []Port, w io.Writer) error {
	results := make([]Result, len(ports))
	var all sync.WaitGroup
	for i, port := range ports {
		all.Go(func() { results[i] = port.check(ctx) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	return report(results, w)
}

// check opens a TCP connection, or sends an empty datagram. UDP has no acknowledgement: a datagram passes if it is answered, or if no error
// arrives before the timeout.
func (p Port) check(ctx context.Context) Result {
	r := Result{Check: CheckPort, Target: p.Protocol + " " + p.Address.String()}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, p.Protocol, p.Address.String())
	if err != nil {
		r.Err = err
		return r
	}
	defer connection.Close()
	if p.Protocol == "udp" {
		deadline, _ := ctx.Deadline()
		if r.Err = connection.SetDeadline(deadline); r.Err != nil {
			return r
		}
		if _, r.Err = connection.Write(nil); r.Err != nil {
			return r
		}
		_, err := connection.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			r.Detail = "no answer and no error"
			return r
		}
		r.Err = err
	}
	r.Latency = time.Since(began)
	return r
}
