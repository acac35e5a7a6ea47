// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package adminapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

const (
	// requestTimeout bounds one request. Members answer from memory.
	requestTimeout = 10 * time.Second
	// backupTimeout bounds the download of a backup.
	backupTimeout = 5 * time.Minute
	// idleTimeout is how long a client keeps a connection.
	idleTimeout = time.Minute
)

// ErrUnsupported is returned for a request that a member of an older image does not support.
var ErrUnsupported = errors.New("the member's image does not know this request")

// Client calls the endpoint of one member. It is safe for concurrent use and is itself a Database.
type Client struct {
	base string
	http *http.Client
}

var _ Database = (*Client)(nil)

// NewClient returns a client of the endpoint at address. config holds the operator's certificate, the CA of the members, and the
// expected server name (`ovn-nb` or `ovn-sb`: members' certificates contain no addresses).
func NewClient(address netip.AddrPort, config *tls.Config) *Client {
	return &Client{
		base: "https://" + address.String(),
		http: &http.Client{
			Transport: &http.Transport{TLSClientConfig: config.Clone(), MaxIdleConns: 1, IdleConnTimeout: idleTimeout},
		},
	}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status implements Database.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.get(ctx, "/status", &s)
	return s, err
}

// Schemas implements Database.
func (c *Client) Schemas(ctx context.Context) (s Schemas, err error) {
	err = c.get(ctx, "/schemas", &s)
	return s, err
}

// BeyondVXLAN implements Database.
func (c *Client) BeyondVXLAN(ctx context.Context) (b BeyondVXLAN, err error) {
	err = c.get(ctx, "/beyond-vxlan", &b)
	return b, err
}

// get decodes the answer to a GET request.
func (c *Client) get(ctx context.Context, path string, into any) error {
	body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode %s of %s: %w", path, c.base, err)
	}
	return nil
}

// Convert implements Database.
func (c *Client) Convert(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/convert", nil)
	return err
}

// Chassis implements Database.
func (c *Client) Chassis(ctx context.Context) ([]string, error) {
	body, err := c.do(ctx, http.MethodGet, "/chassis", nil)
	if err != nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(body, &names); err != nil {
		return nil, fmt.Errorf("decode the chassis of %s: %w", c.base, err)
	}
	return names, nil
}

// RemoveChassis implements Database.
func (c *Client) RemoveChassis(ctx context.Context, names []string) error {
	_, err := c.do(ctx, http.MethodPost, "/chassis/remove", url.Values{"name": names})
	return err
}

// Kick implements Database.
func (c *Client) Kick(ctx context.Context, server string) error {
	_, err := c.do(ctx, http.MethodPost, "/kick", url.Values{"server": {server}})
	return err
}

// Leave implements Database.
func (c *Client) Leave(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/leave", nil)
	return err
}

// Compact implements Database.
func (c *Client) Compact(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/compact", nil)
	return err
}

// Metrics requests the metrics of a member or of ovn-northd, in Prometheus' text format. The caller closes them.
func (c *Client) Metrics(ctx context.Context) (io.ReadCloser, error) {
	response, err := c.send(ctx, http.MethodGet, MetricsPath)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, errors.Join(fmt.Errorf("get metrics of %s: %s: %s", c.base, response.Status, said), response.Body.Close())
	}
	return response.Body, nil
}

// Backup downloads a backup from an Archive into a writer.
func (c *Client) Backup(ctx context.Context, name string, to io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, backupTimeout)
	defer cancel()
	response, err := c.send(ctx, http.MethodGet, "/backups/"+url.PathEscape(name))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("get backup %s: %s: %s", name, response.Status, said)
	}
	if _, err := io.Copy(to, response.Body); err != nil {
		return fmt.Errorf("read backup %s: %w", name, err)
	}
	return nil
}

// send sends a request without a body. Errors of http.Client already name the method and the address.
func (c *Client) send(ctx context.Context, method, target string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+target, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	return c.http.Do(request)
}

func (c *Client) do(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	target := path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	response, err := c.send(ctx, method, target)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	err = errors.Join(err, response.Body.Close())
	if err != nil {
		return nil, fmt.Errorf("read answer of %s %s%s: %w", method, c.base, target, err)
	}
	if response.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%s %s%s: %w", method, c.base, target, ErrUnsupported)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s%s: %s: %s", method, c.base, target, response.Status, body)
	}
	return body, nil
}
