// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"bufio"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// daemon is a fake control socket that returns the answers in order, one per request.
func daemon(t *testing.T, answers ...string) (socket string, requests <-chan string) {
	t.Helper()
	socket = filepath.Join(supervisortest.RunDir(t), "d.ctl")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	seen := make(chan string, len(answers)+1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			seen <- lines.Text()
			if len(answers) > 0 {
				_, _ = conn.Write([]byte(answers[0]))
				answers = answers[1:]
			}
		}
	}()
	return socket, seen
}

func TestCallSendsAnArrayAndReturnsText(t *testing.T) {
	socket, requests := daemon(t, `{"id":1,"result":"connected\n","error":null}`)
	got, err := Call(t.Context(), socket, "connection-status")
	if err != nil || got != "connected" {
		t.Errorf("got %q, %v", got, err)
	}
	if request := <-requests; !strings.Contains(request, `"params":[]`) {
		t.Errorf("request %s", request)
	}
}

func TestCallAnswersEchoAndSkipsOtherMessages(t *testing.T) {
	socket, requests := daemon(t,
		`{"id":"echo","method":"echo","params":["x"]}{"id":9,"result":"other","error":null}`,
		`{"id":1,"result":"mine","error":null}`)
	got, err := Call(t.Context(), socket, "status")
	if err != nil || got != "mine" {
		t.Errorf("got %q, %v", got, err)
	}
	<-requests
	if echo := <-requests; !strings.Contains(echo, `"id":"echo"`) || !strings.Contains(echo, `["x"]`) {
		t.Errorf("answer to echo: %s", echo)
	}
}

func TestCallReturnsTheDaemonsMessage(t *testing.T) {
	socket, _ := daemon(t, `{"id":1,"result":null,"error":"\"nope\" is not a valid command"}`)
	_, err := Call(t.Context(), socket, "nope")
	answer := new(jsonrpc.Error)
	if !errors.As(err, &answer) || answer.Text != `"nope" is not a valid command` {
		t.Errorf("got %v", err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	socket, _ := daemon(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Call(ctx, socket, "version"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
