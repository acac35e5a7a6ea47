// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// maxResponse bounds the size of a response, in bytes.
const maxResponse = 1 << 20

// Client calls the agent of this node. It is for one call in a short-lived process, so it reuses no connection.
type Client struct{ socket string }

// NewClient returns a client of the agent that listens on socket.
func NewClient(socket string) *Client { return &Client{socket: socket} }

// Unavailable reports whether err means that no agent listens. The operation has not started then.
func Unavailable(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// Add attaches a container and returns its result. If no agent listens, it waits for one for at most 30 seconds.
func (c *Client) Add(ctx context.Context, r Request) (*types100.Result, error) {
	r.Limit = limit(ctx)
	res, err := c.call(ctx, PathAdd, r)
	if Unavailable(err) && c.listens(ctx) {
		r.Limit = limit(ctx) // the wait took a part of the time
		res, err = c.call(ctx, PathAdd, r)
	}
	if err != nil {
		return nil, err
	}
	if res.Result == nil {
		return nil, errors.New("the agent answered without a result")
	}
	return res.Result, nil
}

// limit returns the value of Request.Limit for a call: a tenth of the time that is left is for the response.
func limit(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(1, (time.Until(deadline) * 9 / 10).Milliseconds())
}

// Del detaches a container. It succeeds if there is nothing to detach.
func (c *Client) Del(ctx context.Context, r Request) error {
	_, err := c.call(ctx, PathDel, r)
	return err
}

// Check compares a container's attachment with r.PrevResult.
func (c *Client) Check(ctx context.Context, r Request) error {
	_, err := c.call(ctx, PathCheck, r)
	return err
}

// Status returns an error if the agent cannot attach containers now.
func (c *Client) Status(ctx context.Context) error {
	_, err := c.call(ctx, PathStatus, Request{})
	return err
}

// GC detaches every container of r.Network that is not in r.ValidAttachments.
func (c *Client) GC(ctx context.Context, r Request) error {
	_, err := c.call(ctx, PathGC, r)
	return err
}

// call posts r. An error that the agent returned is a *types.Error; any other error comes from the transport.
func (c *Client) call(ctx context.Context, path string, r Request) (*Response, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	status, content, err := c.post(ctx, path, body)
	if err != nil {
		return nil, fmt.Errorf("call the agent: %w", err)
	}
	res := &Response{}
	if len(content) > 0 {
		if err := json.Unmarshal(content, res); err != nil {
			return nil, fmt.Errorf("the agent answered %s: %w", status, err)
		}
	}
	switch {
	case res.Error != nil:
		return nil, res.Error
	case !strings.HasPrefix(status, "2"):
		return nil, fmt.Errorf("the agent answered %s", status)
	}
	return res, nil
}

// post sends one HTTP/1.0 request (RFC 1945) and returns the response: its status with the reason, and its body, which in 1.0 is never
// chunked and ends with the connection. net/http could do this too, but it links TLS, which would be half of a program that runs for
// every pod.
func (c *Client) post(ctx context.Context, path string, body []byte) (status string, content []byte, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return "", nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // pending reads and writes then fail
	status, content, err = exchange(conn, path, body)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return status, content, err
}

func exchange(conn io.ReadWriter, path string, body []byte) (status string, content []byte, err error) {
	head := fmt.Sprintf("POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(body))
	if _, err := conn.Write(append([]byte(head), body...)); err != nil {
		return "", nil, fmt.Errorf("write the request: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxResponse))
	if err != nil {
		return "", nil, fmt.Errorf("read the answer: %w", err)
	}
	headers, content, whole := bytes.Cut(answer, []byte("\r\n\r\n"))
	first, _, _ := strings.Cut(string(headers), "\r\n")
	version, status, _ := strings.Cut(first, " ")
	if !whole || !strings.HasPrefix(version, "HTTP/1.") {
		return "", nil, fmt.Errorf("the answer is cut short or not HTTP: %.60q", answer)
	}
	return status, content, nil
}
