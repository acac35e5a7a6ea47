// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// A server whose socket the kernel refuses to accept connections from is replaced.
func TestHealthChecksAreAnsweredAgainAfterTheServerFailed(t *testing.T) {
	listener, err := net.Listen("tcp", ":0")
	must.Succeed(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	must.Succeed(t, listener.Close())
	var h health
	service := types.NamespacedName{Namespace: "default", Name: "checked"}
	h.set(t.Context(), service, int32(port), 1)
	defer h.set(t.Context(), service, 0, 0)
	answers := func() error {
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	eventually.Wait{For: "the server to start"}.Succeeds(t, answers)
	must.Succeed(t, syscall.Shutdown(listening(t, port), syscall.SHUT_RD)) // pending and later calls of accept fail
	eventually.Wait{For: "a server to answer again"}.Succeeds(t, answers)
}

// listening returns the file descriptor of this process that listens on a port.
func listening(t *testing.T, port int) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must.Succeed(t, err)
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		must.Succeed(t, err)
		address, err := syscall.Getsockname(fd)
		if err != nil {
			continue
		}
		accepts, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
		if at, ok := address.(*syscall.SockaddrInet6); ok && at.Port == port && err == nil && accepts == 1 {
			return fd
		}
	}
	t.Fatalf("no socket listens on port %d", port)
	return -1
}
