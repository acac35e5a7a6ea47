// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "wire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return NewClient(socket)
}

func TestClient(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		code   uint   // of the error, if the agent returned it
		err    string // substring of the error
	}{
		"a result":                   {200, `{"result":{"cniVersion":"1.1.0"}}`, 0, ""},
		"an error of the agent":      {503, `{"error":{"code":11,"msg":"waits"}}`, 11, "waits"},
		"no result":                  {200, `{}`, 0, "without a result"},
		"a failure without a reason": {500, ``, 0, "500 Internal Server Error"},
		"no JSON":                    {404, `404 page not found`, 0, "404 Not Found"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.URL.Path != PathAdd {
					t.Errorf("%s %s", r.Method, r.URL.Path)
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			})
			_, err := client.Add(t.Context(), Request{})
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			var answered *types.Error
			if errors.As(err, &answered) != (c.code != 0) || answered != nil && answered.Code != c.code {
				t.Errorf("got %#v, want code %d", err, c.code)
			}
			if Unavailable(err) {
				t.Error("an agent that answers counts as unavailable")
			}
		})
	}
}

// A response that is cut short because the agent died must not look like a complete one.
func TestAnAnswerThatIsCutShort(t *testing.T) {
	const head, result = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n", `{"result":{"cniVersion":"1.1.0"}}`
	const whole = head + result
	for i := range 2 * (len(whole) + 1) {
		length, add := i/2, i%2 == 0
		socket := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = conn.Write([]byte(whole[:length]))
			}
		}()
		complete := length == len(whole)
		if add {
			_, err = NewClient(socket).Add(t.Context(), Request{})
		} else {
			err = NewClient(socket).Del(t.Context(), Request{})
			complete = complete || length == len(head) // a DEL has no result
		}
		listener.Close()
		if (err == nil) != complete || Unavailable(err) {
			t.Errorf("%q for an ADD (%v): %v", whole[:length], add, err)
		}
	}
}

func TestUnavailable(t *testing.T) {
	client := NewClient(filepath.Join(t.TempDir(), "nobody"))
	if err := client.Status(t.Context()); !Unavailable(err) {
		t.Errorf("no socket: %v", err)
	}
	dir := t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s")})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	if err := NewClient(filepath.Join(dir, "s")).Del(t.Context(), Request{}); !Unavailable(err) {
		t.Errorf("a socket without a listener: %v", err)
	}
	slow := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := slow.Del(ctx, Request{}); err == nil || Unavailable(err) {
		t.Errorf("an agent that is slow: %v", err)
	}
}
