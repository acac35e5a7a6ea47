// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/kiln-net/kiln/cni/wire"
)

// config is the plugin's part of a network configuration.
type config struct {
	types.PluginConf
	ServerSocket string         `json:"server_socket"`
	Provider     string         `json:"provider"`
	Routes       []*types.Route `json:"routes"`
	// Valid and Attachments list the attachments that GC must retain. libcni sends both; runtimes that follow the text of CNI spec 1.1.0
	// send only the second. Nil means that the key is missing; JSON null is an empty list.
	Valid       json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments json.RawMessage `json:"cni.dev/attachments"`

	identity identity
	previous *types100.Result
}

// identity holds the values that a Kubernetes runtime passes in CNI_ARGS. The name of a field is its key there.
type identity struct {
	types.CommonArgs
	K8S_POD_NAME      types.UnmarshallableString
	K8S_POD_NAMESPACE types.UnmarshallableString
	K8S_POD_UID       types.UnmarshallableString
}

// parse reads the configuration and the arguments of one operation.
func parse(args *skel.CmdArgs) (*config, error) {
	c := &config{ServerSocket: wire.DefaultSocket, Provider: wire.DefaultProvider}
	if err := json.Unmarshal(args.StdinData, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration is not valid", err.Error())
	}
	for i, route := range c.Routes {
		if hasNoDestination(route) {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("routes[%d] has no dst", i), "")
		}
	}
	c.identity.IgnoreUnknown = true // runtimes add their own keys
	if err := types.LoadArgs(args.Args, &c.identity); err != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS is not valid", err.Error())
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult is not valid", err.Error())
	}
	if c.PrevResult == nil {
		return c, nil
	}
	previous, err := types100.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "prevResult has an unknown version", err.Error())
	}
	if isIncomplete(previous) {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult is not valid", "an interface is null, an address is empty or a route has no dst")
	}
	c.previous = previous
	return c, nil
}

func hasNoDestination(r *types.Route) bool { return r == nil || r.Dst.IP == nil }

// isIncomplete reports whether a result has an element that is lost when the result is encoded for the agent.
func isIncomplete(r *types100.Result) bool {
	return slices.Contains(r.Interfaces, nil) || slices.ContainsFunc(r.Routes, hasNoDestination) ||
		slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip == nil || ip.Address.IP == nil })
}

// attachments returns the attachments that GC must retain. A missing list is an error: treated as empty, it would remove all attachments.
func (c *config) attachments() (keep []types.GCAttachment, err error) {
	list := c.Valid
	if list == nil {
		list = c.Attachments
	}
	if list == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "GC needs cni.dev/valid-attachments", "nothing is removed without")
	}
	if err := json.Unmarshal(list, &keep); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cni.dev/valid-attachments is not valid", err.Error())
	}
	return keep, nil
}

func (c *config) client() *wire.Client { return wire.NewClient(c.ServerSocket) }

func (c *config) request(args *skel.CmdArgs) wire.Request {
	return wire.Request{
		Network:      c.Name,
		Provider:     c.Provider,
		PodName:      string(c.identity.K8S_POD_NAME),
		PodNamespace: string(c.identity.K8S_POD_NAMESPACE),
		PodUID:       string(c.identity.K8S_POD_UID),
		ContainerID:  args.ContainerID,
		NetNS:        args.Netns,
		IfName:       args.IfName,
		Routes:       c.Routes,
		DNS:          c.DNS,
		PrevResult:   c.previous,
	}
}
