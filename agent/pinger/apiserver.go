// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// APIServer returns a function that requests /readyz of the API server. Every request has its own connection, so that it fails as soon as new
// connections of pods fail.
func APIServer(config *rest.Config) (func(context.Context) error, error) {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the TLS configuration of the API server: %w", err)
	}
	transport, err := rest.HTTPWrappersForConfig(config, &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true})
	if err != nil {
		return nil, fmt.Errorf("make the transport of the API server: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	url, client := base.JoinPath("/readyz").String(), &http.Client{Transport: transport}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return fmt.Errorf("make request: %w", err)
		}
		response, err := client.Do(request)
		if err != nil {
			return fmt.Errorf("request /readyz: %w", err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			answer, _ := io.ReadAll(io.LimitReader(response.Body, 200))
			return fmt.Errorf("the API server is not ready: %s: %s", response.Status, strings.TrimSpace(string(answer)))
		}
		return nil
	}, nil
}
