// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin is the CNI plugin: it forwards every operation to the node's agent and returns the agent's response to the runtime. It
// is stateless and changes nothing on the node itself.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/kiln-net/kiln/cni/wire"
)

// Timeouts of operations. The timeout of ADD is shorter than the two minutes that the kubelet allows the runtime. The agent's error message
// names the missing prerequisite, so the agent has less time than is left of this timeout (wire.Request.Limit).
const (
	addTimeout   = 110 * time.Second
	shortTimeout = 20 * time.Second
)

// Main runs the operation that the environment selects, as specified by CNI spec 1.1, and exits.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status},
		version.All, "kube-ovn: attaches pods to OVN through the agent of the node")
}

func add(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), addTimeout)
	defer cancel()
	result, err := c.client().Add(ctx, c.request(args))
	if err != nil {
		return failure(err, types.ErrTryAgainLater)
	}
	return types.PrintResult(result, c.CNIVersion)
}

// del succeeds if no agent listens: the runtime then deletes the network namespace, and with it the veth; the agent removes the stale
// ports from Open vSwitch when it starts. So pods can be stopped on a node whose agent is down.
func del(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortTimeout)
	defer cancel()
	err = c.client().Del(ctx, c.request(args))
	if wire.Unavailable(err) {
		fmt.Fprintf(os.Stderr, "the agent is not running; it removes %s of %s when it starts: %v\n", args.IfName, args.ContainerID, err)
		return nil
	}
	return failure(err, types.ErrTryAgainLater)
}

func check(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if c.previous == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK needs prevResult", "")
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortTimeout)
	defer cancel()
	return failure(c.client().Check(ctx, c.request(args)), types.ErrTryAgainLater)
}

func gc(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	request := c.request(args)
	if request.ValidAttachments, err = c.attachments(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortTimeout)
	defer cancel()
	return failure(c.client().GC(ctx, request), types.ErrTryAgainLater)
}

func status(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortTimeout)
	defer cancel()
	return failure(c.client().Status(ctx), types.ErrPluginNotAvailable)
}

// failure converts err for the runtime: an error of the agent is unchanged, and an error of the transport gets code.
func failure(err error, code uint) error {
	var answered *types.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answered):
		return answered
	}
	return types.NewError(code, "the network agent of this node (kube-ovn-cni) does not answer", err.Error())
}
