// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cniserver serves the requests of the CNI plugin: it attaches containers of this node to the integration bridge and detaches
// them. Every operation is idempotent and keyed by container and interface. The next operation completes or undoes an interrupted one.
package cniserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/probes"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/cni/wire"
	"github.com/kiln-net/kiln/internal/serving/httpserver"
)

const (
	// maxRequest bounds a request, in bytes: a GC lists every container of the node.
	maxRequest = 4 << 20
	// shutdownGrace is the time in which operations in flight may finish at shutdown. The connections of the remaining ones are closed,
	// and the plugin returns "try again later" to the runtime.
	shutdownGrace = 3 * time.Second
)

// Server is the agent's side of the plugin.
type Server struct {
	// Socket is the path to listen on.
	Socket string
	// Node is this node's name, for metrics.
	Node   string
	Bridge *ovs.Bridge
	Pods   *Pods
	// Probes makes the node's routes to pods of custom VPCs.
	Probes *probes.Controller
	// MTU returns the MTU in bytes of pods whose subnet sets none.
	MTU func(context.Context) (int, error)
	// ProviderMTU returns the MTU in bytes of a provider network's interface. The error says that the provider network is not ready on this
	// node.
	ProviderMTU func(ctx context.Context, provider string) (int, error)
	// CheckNeighbours returns an error if another host of a physical network has an address of the pod, or if the pod's gateway does not answer.
	CheckNeighbours func(context.Context, v1.PodNetwork) error
	// Services returns the CIDRs of Services.
	Services func(context.Context) ([]netip.Prefix, error)
	// MTUChanged receives a value after the result of MTU or ProviderMTU has changed.
	MTUChanged <-chan struct{}
	// Mirror is the setting of the node's mirror.
	Mirror *MirrorSetting
	// Ready returns nil when containers can be attached now, and otherwise an error that names the missing prerequisite.
	Ready func(context.Context) error

	// Recorder reports events on pods.
	Recorder events.EventRecorder

	locks      locks
	repairs    repairs
	unenforced unenforced
}

// Start listens until ctx ends. It makes the server a Runnable of controller-runtime.
func (s *Server) Start(ctx context.Context) error {
	listener, err := listen(s.Socket)
	if err != nil {
		return fmt.Errorf("listen for the CNI plugin: %w", err)
	}
	server := httpserver.New(s.Handler())
	server.BaseContext = func(net.Listener) context.Context { return log.IntoContext(context.Background(), log.FromContext(ctx)) }
	server.ReadTimeout, server.WriteTimeout = 0, 0 // the runtime limits its operations, and only root can connect
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the CNI plugin: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return server.Close()
	}
	return nil
}

// NeedLeaderElection is false: every node serves its own pods.
func (s *Server) NeedLeaderElection() bool { return false }

// listen creates the socket under a temporary path, sets its mode and renames it, replacing the socket of a previous agent. At every
// moment a socket exists at path, and only root can use it.
func listen(path string) (net.Listener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove leftover socket: %w", err)
	}
	listener, err := net.Listen("unix", fresh)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// operation handles one request; its result may be nil.
type operation func(context.Context, wire.Request) (*wire.Response, error)

// Handler serves the paths of package wire.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, op := range map[string]operation{
		wire.PathAdd:    s.add,
		wire.PathDel:    s.del,
		wire.PathCheck:  s.check,
		wire.PathStatus: s.status,
		wire.PathGC:     s.gc,
	} {
		mux.Handle("POST "+path, s.serve(path, op))
	}
	return mux
}

func (s *Server) serve(path string, op operation) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		logger := log.FromContext(r.Context()).WithValues("operation", path)
		var request wire.Request
		var response *wire.Response
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&request)
		if err != nil {
			err = types.NewError(types.ErrDecodingFailure, "the request is not valid", err.Error())
		} else {
			logger = logger.WithValues("pod", request.PodNamespace+"/"+request.PodName, "container", request.ContainerID, "interface", request.IfName)
			response, err = op(log.IntoContext(r.Context(), logger), request)
		}
		code := http.StatusNoContent
		switch {
		case err != nil:
			response = &wire.Response{Error: cniError(err)}
			code = statusOf(response.Error)
			if deleted := podDeletedError(""); errors.As(err, &deleted) {
				logger.Info("CNI operation ended", "reason", deleted.Error())
			} else {
				logger.Error(err, "CNI operation failed")
			}
		case response != nil:
			code = http.StatusOK
		}
		observe(s.Node, path, code, time.Since(began))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if response != nil {
			// If the runtime has closed the connection, the response is lost; the runtime retries the operation.
			_ = json.NewEncoder(w).Encode(response)
		}
	})
}

// cniError converts err to a CNI error. The code selects the runtime's reaction (CNI spec 1.1, "Error"): temporary errors get "try again
// later".
func cniError(err error) *types.Error {
	var already *types.Error
	passing := []error{context.DeadlineExceeded, context.Canceled, ovs.ErrDisconnected, ovs.ErrNoBridge}
	switch {
	case errors.As(err, &already):
		return already
	case errors.Is(err, sandbox.ErrNoNamespace):
		return types.NewError(types.ErrInvalidNetNS, err.Error(), "")
	}
	for _, p := range passing {
		if errors.Is(err, p) {
			return types.NewError(types.ErrTryAgainLater, err.Error(), "")
		}
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

func statusOf(err *types.Error) int {
	switch err.Code {
	case types.ErrTryAgainLater, types.ErrPluginNotAvailable:
		return http.StatusServiceUnavailable
	case types.ErrInternal:
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

func (s *Server) status(ctx context.Context, _ wire.Request) (*wire.Response, error) {
	if err := s.Ready(ctx); err != nil {
		return nil, types.NewError(types.ErrPluginNotAvailable, "pods cannot be attached on this node now", err.Error())
	}
	return nil, nil
}
