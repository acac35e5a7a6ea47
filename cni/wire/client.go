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
	"net/http"
	"os"
	"syscall"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// maxResponse bounds what a client reads, in bytes.
const maxResponse = 1 << 20

// Client calls the agent of this node. It is made for one call in a short process, so it keeps no connection.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client of the agent that listens on socket.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", c.socket)
		},
	}
	return c
}

// Unavailable says that err means that no agent listens: the operation was not begun.
func Unavailable(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// Add attaches a container and returns its result.
func (c *Client) Add(ctx context.Context, r Request) (*types100.Result, error) {
	res, err := c.call(ctx, PathAdd, r)
	if err != nil {
		return nil, err
	}
	if res.Result == nil {
		return nil, errors.New("the agent answered without a result")
	}
	return res.Result, nil
}

// Del detaches a container. It succeeds when there is nothing to detach.
func (c *Client) Del(ctx context.Context, r Request) error {
	_, err := c.call(ctx, PathDel, r)
	return err
}

// Check compares a container's attachment with r.PrevResult.
func (c *Client) Check(ctx context.Context, r Request) error {
	_, err := c.call(ctx, PathCheck, r)
	return err
}

// Status says whether the agent can attach containers now.
func (c *Client) Status(ctx context.Context) error {
	_, err := c.call(ctx, PathStatus, Request{})
	return err
}

// GC detaches every container of r.Network that is not in r.ValidAttachments.
func (c *Client) GC(ctx context.Context, r Request) error {
	_, err := c.call(ctx, PathGC, r)
	return err
}

// call posts r. An error that the agent answered is a *types.Error; any other comes from the transport.
func (c *Client) call(ctx context.Context, path string, r Request) (*Response, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	answer, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("call the agent: %w", err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(io.LimitReader(answer.Body, maxResponse))
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	res := &Response{}
	if len(content) > 0 {
		if err := json.Unmarshal(content, res); err != nil {
			return nil, fmt.Errorf("the agent answered %s: %w", answer.Status, err)
		}
	}
	switch {
	case res.Error != nil:
		return nil, res.Error
	case answer.StatusCode/100 != 2:
		return nil, fmt.Errorf("the agent answered %s", answer.Status)
	}
	return res, nil
}
