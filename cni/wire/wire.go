// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between the CNI plugin and the agent: JSON over HTTP on a unix socket of the node. The agent accepts any
// version of HTTP/1; the plugin sends HTTP/1.0.
package wire

import (
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// DefaultSocket is the path at which the agent listens; it is Kube-OVN's.
const DefaultSocket = "/run/openvswitch/kube-ovn-daemon.sock"

// DefaultProvider is the provider of a pod's primary interface: the prefix of its annotations.
const DefaultProvider = "ovn"

// Paths of the operations. Each is a POST of a Request; Status and GC use only some of its fields.
const (
	PathAdd    = "/api/v1/add"
	PathDel    = "/api/v1/del"
	PathCheck  = "/api/v1/check"
	PathStatus = "/api/v1/status"
	PathGC     = "/api/v1/gc"
)

// Request is one CNI operation with the parameters that the runtime passed to the plugin.
type Request struct {
	// Network is the name of the network configuration. GC concerns the attachments of this network only.
	Network string `json:"network,omitempty"`
	// Provider is the prefix of the pod's annotations; DefaultProvider for the primary interface.
	Provider     string `json:"provider,omitempty"`
	PodName      string `json:"pod_name,omitempty"`
	PodNamespace string `json:"pod_namespace,omitempty"`
	// PodUID distinguishes a pod from an earlier pod of the same name. It is empty if the runtime does not pass K8S_POD_UID.
	PodUID      string `json:"pod_uid,omitempty"`
	ContainerID string `json:"container_id,omitempty"`
	// NetNS is the path of the pod's network namespace; in a DEL it may be empty, or the namespace may be deleted.
	NetNS  string `json:"net_ns,omitempty"`
	IfName string `json:"if_name,omitempty"`
	// Routes of the network configuration, added to the pod's.
	Routes []*types.Route `json:"routes,omitempty"`
	// DNS of the network configuration, returned in the result as the specification requires.
	DNS types.DNS `json:"dns"`
	// PrevResult is the result that CHECK verifies.
	PrevResult *types100.Result `json:"prev_result,omitempty"`
	// Limit is the time that the agent has for an ADD, in milliseconds. It ends before the plugin's own timeout, so that the plugin receives
	// the agent's error. 0 means that the plugin sets no limit.
	Limit int64 `json:"limit_ms,omitempty"`
	// ValidAttachments are the attachments of Network that GC must retain.
	ValidAttachments []types.GCAttachment `json:"valid_attachments,omitempty"`
}

// Response is the response to an operation: a result, an error, or neither for a successful operation without a result.
type Response struct {
	// Result of an ADD, in the latest version of the specification; the plugin converts it to the runtime's version.
	Result *types100.Result `json:"result,omitempty"`
	// Error has a code of the specification (CNI spec 1.1, "Error"), or a code above 100.
	Error *types.Error `json:"error,omitempty"`
}
