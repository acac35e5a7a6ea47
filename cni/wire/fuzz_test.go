// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net"
	"path/filepath"
	"testing"
)

// FuzzAnswer makes an agent send arbitrary bytes as its response. The client returns a result or an error, and does not panic. It does
// not report an agent that responded as unavailable, because the plugin would then repeat an operation that has started.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"result\":{\"cniVersion\":\"1.1.0\"}}"))
	f.Add([]byte("HTTP/1.1 503 Service Unavailable\r\n\r\n{\"error\":{\"code\":11,\"msg\":\"waits\"}}"))
	f.Add([]byte("HTTP/1.0 204 No Content\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 200 OK\r\n\r\n{\"result\":null,\"error\":null}"))
	socket := filepath.Join(f.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { listener.Close() })
	answers := make(chan []byte)
	go answerEach(listener, answers)
	f.Fuzz(func(t *testing.T, answer []byte) {
		answers <- answer
		result, err := NewClient(socket).Add(t.Context(), Request{})
		switch {
		case (result == nil) == (err == nil):
			t.Errorf("got result %v and error %v", result, err)
		case Unavailable(err):
			t.Errorf("an agent that answers counts as unavailable: %v", err)
		}
	})
}

// answerEach sends one of the answers on each connection until the listener closes.
func answerEach(listener net.Listener, answers <-chan []byte) {
	request := make([]byte, 1<<16)
	for answer := range answers {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if _, err := conn.Read(request); err == nil {
			_, _ = conn.Write(answer)
		}
		conn.Close()
	}
}
