// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire is what the CNI plugin and the agent say to each other: JSON over HTTP on a unix socket of the node. The agent serves any
// version of HTTP/1; the plugin asks in 1.0.
package wire

import (
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// DefaultSocket is where the agent listens, as Kube-OVN's does.
const DefaultSocket = "/run/openvswitch/kube-ovn-daemon.sock"

// DefaultProvider is the provider of a pod's primary interface: the prefix of its annotations.
const DefaultProvider = "ovn"

// Paths of the operations. Every one is a POST of a Request (Status and GC use only some of its fields).
const (
	PathAdd    = "/api/v1/add"
	PathDel    = "/api/v1/del"
	PathCheck  = "/api/v1/check"
	PathStatus = "/api/v1/status"
	PathGC     = "/api/v1/gc"
)

// Request is one CNI operation, as the runtime called the plugin.
type Request struct {
	// Network is the name of the network configuration: GC is about attachments of one network only.
	Network string `json:"network,omitempty"`
	// Provider is the prefix of the pod's annotations; DefaultProvider for the primary interface.
	Provider     string `json:"provider,omitempty"`
	PodName      string `json:"pod_name,omitempty"`
	PodNamespace string `json:"pod_namespace,omitempty"`
	// PodUID tells a pod from its predecessor of the same name. Empty from runtimes that do not pass K8S_POD_UID.
	PodUID      string `json:"pod_uid,omitempty"`
	ContainerID string `json:"container_id,omitempty"`
	// NetNS is the path of the pod's network namespace; in a DEL it may be empty, or gone.
	NetNS  string `json:"net_ns,omitempty"`
	IfName string `json:"if_name,omitempty"`
	// Routes of the network configuration, added to those of the pod.
	Routes []*types.Route `json:"routes,omitempty"`
	// DNS of the network configuration, handed back in the result as the specification asks.
	DNS types.DNS `json:"dns"`
	// PrevResult is the result to CHECK.
	PrevResult *types100.Result `json:"prev_result,omitempty"`
	// ValidAttachments are those of Network that the runtime still knows (GC).
	ValidAttachments []types.GCAttachment `json:"valid_attachments,omitempty"`
}

// Response is the answer to an operation: a result, an error, or nothing for those that only succeed.
type Response struct {
	// Result of an ADD, in the latest version of the specification; the plugin converts it to the caller's.
	Result *types100.Result `json:"result,omitempty"`
	// Error has a code of the specification (CNI spec 1.1, "Error"), or one above 100.
	Error *types.Error `json:"error,omitempty"`
}
